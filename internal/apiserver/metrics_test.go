package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"carob/internal/base/testwait"
)

// families are kube-apiserver's metrics of stability STABLE and BETA in v1.37, and those of the
// others that dashboards and alerts use, each with its labels. docs/differences.md has the reasons
// for missing ones.
var families = map[string]string{
	// STABLE
	"apiserver_admission_controller_admission_duration_seconds": "name operation rejected type",
	"apiserver_admission_step_admission_duration_seconds":       "operation rejected type",
	"apiserver_admission_webhook_admission_duration_seconds":    "name operation rejected type",
	"apiserver_current_inflight_requests":                       "request_kind",
	"apiserver_longrunning_requests":                            "component group resource scope subresource verb version",
	"apiserver_request_duration_seconds":                        "component dry_run group resource scope subresource verb version",
	"apiserver_request_total":                                   "code component dry_run group resource scope subresource verb version",
	"apiserver_requested_deprecated_apis":                       "group removed_release resource subresource version",
	"apiserver_response_sizes":                                  "component group resource scope subresource verb version",
	"apiserver_storage_objects":                                 "resource",
	"apiserver_storage_size_bytes":                              "storage_cluster_id",
	// BETA
	"apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds": "apiserver_id_hash status",
	"apiserver_authentication_config_controller_automatic_reloads_total":                 "apiserver_id_hash status",
	"apiserver_cel_compilation_duration_seconds":                                         "",
	"apiserver_cel_evaluation_duration_seconds":                                          "",
	"apiserver_flowcontrol_current_executing_requests":                                   "flow_schema priority_level",
	"apiserver_flowcontrol_current_executing_seats":                                      "flow_schema priority_level",
	"apiserver_flowcontrol_dispatched_requests_total":                                    "flow_schema priority_level",
	"apiserver_flowcontrol_nominal_limit_seats":                                          "priority_level",
	"apiserver_flowcontrol_rejected_requests_total":                                      "flow_schema priority_level reason",
	"apiserver_flowcontrol_request_wait_duration_seconds":                                "execute flow_schema priority_level",
	"apiserver_storage_events_received_total":                                            "group resource",
	"apiserver_validating_admission_policy_check_duration_seconds":                       "enforcement_action error_type policy policy_binding",
	"apiserver_validating_admission_policy_check_total":                                  "enforcement_action error_type policy policy_binding",
	"apiserver_validation_declarative_validation_mismatch_total":                         "",
	"apiserver_validation_declarative_validation_panic_total":                            "",
	"apiserver_watch_events_sizes":                                                       "group resource version",
	"apiserver_watch_events_total":                                                       "group resource version",
	"apiserver_watch_list_duration_seconds":                                              "group resource scope version",
	"apiserver_webhooks_x509_insecure_sha1_total":                                        "",
	"apiserver_webhooks_x509_missing_san_total":                                          "",
	"disabled_metrics_total":                                                             "",
	"hidden_metrics_total":                                                               "",
	"kubernetes_build_info":                                                              "build_date compiler git_commit git_tree_state git_version go_version major minor platform",
	"kubernetes_feature_enabled":                                                         "name stage",
	"registered_metrics_total":                                                           "deprecated_version stability_level",
	"serviceaccount_legacy_tokens_total":                                                 "",
	"serviceaccount_stale_tokens_total":                                                  "",
	"serviceaccount_valid_tokens_total":                                                  "",
	"workqueue_adds_total":                                                               "name",
	"workqueue_depth":                                                                    "name",
	"workqueue_longest_running_processor_seconds":                                        "name",
	"workqueue_queue_duration_seconds":                                                   "name",
	"workqueue_retries_total":                                                            "name",
	"workqueue_unfinished_work_seconds":                                                  "name",
	"workqueue_work_duration_seconds":                                                    "name",
	// ALPHA
	"aggregator_unavailable_apiservice":                              "name",
	"aggregator_unavailable_apiservice_total":                        "name reason",
	"apiserver_authorization_decisions_total":                        "decision name type",
	"apiserver_current_inqueue_requests":                             "request_kind",
	"apiserver_request_filter_duration_seconds":                      "filter",
	"authentication_token_cache_active_fetch_count":                  "status",
	"authentication_token_cache_fetch_total":                         "status",
	"authentication_token_cache_request_duration_seconds":            "status",
	"authentication_token_cache_request_total":                       "status",
	"kube_apiserver_clusterip_allocator_allocated_ips":               "cidr",
	"kube_apiserver_clusterip_allocator_allocation_duration_seconds": "cidr",
	"kube_apiserver_clusterip_allocator_allocation_errors_total":     "cidr scope",
	"kube_apiserver_clusterip_allocator_allocation_total":            "cidr scope",
	"kube_apiserver_clusterip_allocator_available_ips":               "cidr",
	"kube_apiserver_nodeport_allocator_allocated_ports":              "",
	"kube_apiserver_nodeport_allocator_allocation_errors_total":      "scope",
	"kube_apiserver_nodeport_allocator_allocation_total":             "scope",
	"kube_apiserver_nodeport_allocator_available_ports":              "",
}

// labels returns the labels of each metric of the process.
func labels(t *testing.T) map[string]string {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range all {
		var names []string
		for _, l := range f.Metric[0].Label {
			names = append(names, l.GetName())
		}
		slices.Sort(names)
		out[f.GetName()] = strings.Join(names, " ")
	}
	return out
}

// Dashboards and alerts made for kube-apiserver find every metric, with its labels, once it has a
// value.
func TestFamilies(t *testing.T) {
	cfg := newConfig(t, t.TempDir())
	cfg.AuthenticationConfig = filepath.Join(t.TempDir(), "authentication.yaml")
	authentication := func(path string) {
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: " + path + "}]}\n"
		if err := os.WriteFile(cfg.AuthenticationConfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authentication("/livez")
	r := startWith(t, cfg)
	authentication("/readyz") // it is reloaded
	ctx, c := t.Context(), r.remote(t, r.pki.Admin.Pair())
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// A webhook and a policy, so that CEL is compiled and evaluated.
	url, ca := reviewer(t)
	rules := []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{
		"CREATE"},
		Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
			Resources: []string{"configmaps"}}}}
	none := admissionregistrationv1.SideEffectClassNone
	path := url + "/mutate"
	must(c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx,
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "labels"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "labels.example.org", Rules: rules,
				SideEffects:             &none,
				AdmissionReviewVersions: []string{"v1"},
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &path, CABundle: ca}}}},
		metav1.CreateOptions{}))
	must(c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx,
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rules[0]}}},
				Validations: []admissionregistrationv1.Validation{{Expression: "object.metadata.name != 'refused'"}}}},
		metav1.CreateOptions{}))
	must(c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx,
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "all",
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}},
		metav1.CreateOptions{}))
	refused := func(o *corev1.ConfigMap, why string) {
		t.Helper()
		testwait.Until(t, why, func() error {
			made, err := c.CoreV1().ConfigMaps("default").Create(ctx, o, metav1.CreateOptions{})
			if err == nil && why == "the webhook" && made.Labels["seen"] != "" {
				return nil
			}
			if err == nil || why == "the webhook" {
				_ = c.CoreV1().ConfigMaps("default").Delete(ctx, o.Name, metav1.DeleteOptions{})
				return fmt.Errorf("labels %v, %w", made.GetLabels(), err)
			}
			return nil
		})
	}
	refused(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}, "the webhook")
	refused(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, "the policy")
	// A flow with almost no seats.
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "closed"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: new(int32(0)),
				LendablePercent: new(int32(0)), BorrowingLimitPercent: new(int32(0)),
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}}}}
	must(c.FlowcontrolV1().PriorityLevelConfigurations().Create(ctx, level, metav1.CreateOptions{}))
	token, err := c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		must(c.CoreV1().ServiceAccounts("default").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
		token, err = c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
	}
	must(token, err)
	pod := r.bearer(t, token.Status.Token)
	testwait.Until(t, "a sorted request", func() error {
		_, err := whoAmI(t, pod)
		if err == nil && !r.ext.flow.Active() {
			err = errors.New("not sorted yet")
		}
		return err
	})
	must(c.FlowcontrolV1().FlowSchemas().Create(ctx,
		&flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence:         2,
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "closed"},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{Subjects: []flowcontrolv1.Subject{{
				Kind:           flowcontrolv1.SubjectKindServiceAccount,
				ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "default", Name: "default"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"},
					Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}}}}}},
		metav1.CreateOptions{}))
	testwait.Until(t, "a rejected request", func() error {
		// A request whose body never comes takes the only seat.
		send(t, r.dial(t),
			"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\nHost: h\r\nImpersonate-User: system:serviceaccount:default:default\r\n"+
				"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		if err := pod.CoreV1().RESTClient().Get().AbsPath("/api/v1/pods").MaxRetries(0).Do(
			ctx).Error(); !apierrors.IsTooManyRequests(err) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	// Services, an unavailable API server, a deprecated API, a watch that begins with a list.
	ports := []corev1.ServicePort{{Port: 80}}
	must(c.CoreV1().Services("default").Create(ctx,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: ports}}, metav1.CreateOptions{}))
	for _, bad := range []corev1.ServiceSpec{{Type: corev1.ServiceTypeNodePort,
		Ports: []corev1.ServicePort{{Port: 80, NodePort: 1}}},
		{Ports: ports, ClusterIP: FirstServiceIP(nil).String()}} {
		if _, err := c.CoreV1().Services("default").Create(ctx,
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: bad},
			metav1.CreateOptions{}); err == nil {
			t.Error("a port or an address is given twice")
		}
	}
	foreign, err := aggregatorclient.NewForConfig(r.serverClient())
	must(foreign, err)
	must(foreign.ApiregistrationV1().APIServices().Create(ctx,
		&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.away.example.org"},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: "away.example.org", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1,
				InsecureSkipTLSVerify: true,
				Service:               &apiregistrationv1.ServiceReference{Namespace: "default", Name: "away"}}},
		metav1.CreateOptions{}))
	testwait.Until(t, "an API server that goes away", func() error {
		o, err := foreign.ApiregistrationV1().APIServices().Get(ctx, "v1.away.example.org", metav1.GetOptions{})
		if err != nil {
			return err
		}
		o.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available,
			Status: apiregistrationv1.ConditionTrue, Reason: "Passed"}}
		if _, err := foreign.ApiregistrationV1().APIServices().UpdateStatus(ctx, o,
			metav1.UpdateOptions{}); err != nil {
			return err
		}
		if _, ok := labels(t)["aggregator_unavailable_apiservice_total"]; !ok {
			return errors.New("not seen yet")
		}
		return nil
	})
	must(c.CoreV1().ComponentStatuses().List(ctx, metav1.ListOptions{}))
	w, err := c.CoreV1().ConfigMaps("").Watch(ctx,
		metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			AllowWatchBookmarks: true})
	must(w, err)
	defer w.Stop()
	<-w.ResultChan()
	must(c.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{}))
	testwait.Until(t, "all families", func() error {
		if code, body := r.read(t, "/metrics"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		got := labels(t)
		var missing []string
		for name := range families {
			if _, ok := got[name]; !ok {
				missing = append(missing, name)
			}
		}
		slices.Sort(missing)
		if len(missing) > 0 {
			return fmt.Errorf("missing: %s", strings.Join(missing, " "))
		}
		return nil
	})
	got := labels(t)
	for name, want := range families {
		if got[name] != want {
			t.Errorf("%s has the labels %q, want %q", name, got[name], want)
		}
	}
	_, body := r.read(t, "/metrics")
	for _, want := range []string{`aggregator_unavailable_apiservice{name="v1.away.example.org"} 1`,
		`aggregator_unavailable_apiservice{name="v1.apps"} 0`,
		`kube_apiserver_nodeport_allocator_allocated_ports 1`,
		`kube_apiserver_clusterip_allocator_available_ips{cidr="10.96.0.0/16"} `,
		`apiserver_authorization_decisions_total{decision="allowed",name="rbac",type="RBAC"} `,
		`authentication_token_cache_request_total{status="hit"} `} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, filter := range []string{"authentication", "constrainedimpersonation", "priorityandfairness",
		"authorization"} {
		if !strings.Contains(body, `apiserver_request_filter_duration_seconds_count{filter="`+filter+`"} `) {
			t.Errorf("the filter %s is not measured", filter)
		}
	}
}
