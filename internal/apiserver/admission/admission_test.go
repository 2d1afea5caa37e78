package admission

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/utils/ptr"
)

// cluster is a Reader over a list of objects by resource.
type cluster map[string][]runtime.Object

func (c cluster) Get(_ context.Context, r schema.GroupResource, _, name string) (runtime.Object, error) {
	for _, o := range c[r.Resource] {
		if o.(metav1.Object).GetName() == name {
			return o, nil
		}
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (c cluster) Await(ctx context.Context, r schema.GroupResource, ns, name string, _ time.Duration) (runtime.Object,
	error) {
	return c.Get(ctx, r, ns, name)
}

func (c cluster) List(_ context.Context, r schema.GroupResource, _ string, fn func(runtime.Object) bool) error {
	for _, o := range c[r.Resource] {
		if !fn(o) {
			break
		}
	}
	return nil
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, UID: "uid-" + "x"} }

// usual returns a namespace with its default service account in a cluster with one node.
func usual() cluster {
	return cluster{
		"namespaces": {
			&corev1.Namespace{ObjectMeta: named("ns")},
			&corev1.Namespace{ObjectMeta: named("kube-node-lease")},
			&corev1.Namespace{ObjectMeta: named("ending"),
				Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}},
		},
		"serviceaccounts": {
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "uid-default"},
				ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
			&corev1.ServiceAccount{ObjectMeta: named("quiet"), AutomountServiceAccountToken: new(false)},
		},
		"nodes": {&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-n1",
			Labels: map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}},
			Status: corev1.NodeStatus{Allocatable: amounts("2", "1Gi")}}},
		"priorityclasses": {&schedulingv1.PriorityClass{ObjectMeta: named("high"), Value: 1000,
			PreemptionPolicy: new(corev1.PreemptNever)}},
		"runtimeclasses": {&nodev1.RuntimeClass{ObjectMeta: named("vm"), Handler: "vm",
			Overhead:   &nodev1.Overhead{PodFixed: amounts("100m", "10Mi")},
			Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"}}}},
		"pods": {
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mine", UID: "uid-mine"},
				Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "default", Volumes: []corev1.Volume{
					{Name: "p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
						Sources: []corev1.VolumeProjection{
							{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}},
							{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}},
							{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/s"}}}}}},
					{Name: "c", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline"}}},
					{Name: "v", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
				}}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "theirs", UID: "uid-theirs"},
				Spec: corev1.PodSpec{NodeName: "n2"}},
		},
		"persistentvolumeclaims": {&corev1.PersistentVolumeClaim{ObjectMeta: named("claim"),
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "volume"}}},
		"persistentvolumes": {&corev1.PersistentVolume{ObjectMeta: named("volume"), Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "claimed"}}}}},
		"csidrivers": {
			&storagev1.CSIDriver{ObjectMeta: named("inline"),
				Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "for-inline"}}}},
			&storagev1.CSIDriver{ObjectMeta: named("claimed"),
				Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "for-claimed"}}}},
		},
	}
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
}

func newTestPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}},
			InitContainers: []corev1.Container{{Name: "i"}}}}
	if change != nil {
		change(p)
	}
	return p
}

var admin = &user.DefaultInfo{Name: "admin"}

// request is one API request; obj may be nil.
type request struct {
	group                                string
	kind, resource, sub, namespace, name string
	op                                   admission.Operation
	obj, old                             runtime.Object
	user                                 user.Info
}

// send runs the whole chain, as the server does.
func send(c cluster, r request) error {
	if r.user == nil {
		r.user = admin
	}
	a := admission.NewAttributesRecord(r.obj, r.old,
		schema.GroupVersionKind{Group: r.group, Version: "v1", Kind: r.kind}, r.namespace, r.name,
		schema.GroupVersionResource{Group: r.group, Version: "v1", Resource: r.resource}, r.sub, r.op, nil, false,
		r.user)
	chain, err := New(Config{Reader: c, Authorizer: authorizerfactory.NewAlwaysDenyAuthorizer()})
	if err != nil {
		return err
	}
	if err := chain.(admission.MutationInterface).Admit(context.Background(), a, nil); err != nil {
		return err
	}
	return chain.(admission.ValidationInterface).Validate(context.Background(), a, nil)
}

func createPod(c cluster, p *corev1.Pod) error {
	return send(c, request{kind: "Pod", resource: "pods", namespace: "ns", name: p.Name, op: admission.Create, obj: p})
}

// L1.27, L1.30, L1.31: the defaults of every pod.
func TestPlainPod(t *testing.T) {
	p := newTestPod(nil)
	if err := createPod(usual(), p); err != nil {
		t.Fatal(err)
	}
	s := &p.Spec
	if s.ServiceAccountName != "default" || s.DeprecatedServiceAccount != "default" || len(s.ImagePullSecrets) != 1 {
		t.Errorf("account %q, %q, pull secrets %v", s.ServiceAccountName, s.DeprecatedServiceAccount,
			s.ImagePullSecrets)
	}
	if len(s.Volumes) != 1 || !strings.HasPrefix(s.Volumes[0].Name, "kube-api-access-") ||
		len(s.Volumes[0].Name) != len("kube-api-access-")+5 ||
		*s.Volumes[0].Projected.Sources[0].ServiceAccountToken.ExpirationSeconds != 3607 ||
		*s.Volumes[0].Projected.DefaultMode != 0o644 {
		t.Errorf("token volume %+v", s.Volumes)
	}
	for _, c := range []corev1.Container{s.Containers[0], s.InitContainers[0]} {
		if len(c.VolumeMounts) != 1 || !c.VolumeMounts[0].ReadOnly ||
			c.VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" {
			t.Errorf("mounts of %s: %v", c.Name, c.VolumeMounts)
		}
	}
	if *s.Priority != 0 || *s.PreemptionPolicy != corev1.PreemptLowerPriority {
		t.Errorf("priority %d, %s", *s.Priority, *s.PreemptionPolicy)
	}
	if len(s.Tolerations) != 2 || *s.Tolerations[0].TolerationSeconds != 300 {
		t.Errorf("tolerations %v", s.Tolerations)
	}
}

func TestPodVariants(t *testing.T) {
	mirror := map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string // part of the error, empty for none
		check  func(*corev1.Pod) bool
	}{
		{"L1.27: the account says no token", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" }, "",
			func(p *corev1.Pod) bool { return len(p.Spec.Volumes) == 0 }},
		{"L1.27: the pod's word counts more", func(p *corev1.Pod) {
			p.Spec.ServiceAccountName = "quiet"
			p.Spec.AutomountServiceAccountToken = new(true)
		}, "", func(p *corev1.Pod) bool { return len(p.Spec.Volumes) == 1 }},
		{"L1.27: own mount", func(p *corev1.Pod) {
			p.Spec.InitContainers = nil
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: tokenMountPath}}
		}, "", func(p *corev1.Pod) bool { return len(p.Spec.Volumes) == 0 }},
		{"L1.27: own pull secrets",
			func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}} }, "",
			func(p *corev1.Pod) bool {
				return len(p.Spec.ImagePullSecrets) == 1 && p.Spec.ImagePullSecrets[0].Name == "own"
			}},
		{"L1.27: no such account", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "nobody" },
			`error looking up service account ns/nobody: serviceaccount "nobody" not found`, nil},
		{"L1.30", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, "", func(p *corev1.Pod) bool {
			return *p.Spec.Priority == 1000 && *p.Spec.PreemptionPolicy == corev1.PreemptNever
		}},
		{"L1.30", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high"; p.Spec.Priority = ptr.To[int32](5) },
			"the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name", nil},
		{"L1.30", func(p *corev1.Pod) { p.Spec.PriorityClassName = "none" },
			"no PriorityClass with name none was found", nil},
		{"L1.31: tolerates everything",
			func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }, "",
			func(p *corev1.Pod) bool { return len(p.Spec.Tolerations) == 1 }},
		{"L1.32", func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("vm") }, "", func(p *corev1.Pod) bool {
			return p.Spec.Overhead.Cpu().MilliValue() == 100 && p.Spec.NodeSelector["vm"] == "yes"
		}},
		{"L1.32", func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("none") },
			`pod rejected: RuntimeClass "none" not found`, nil},
		{"L1.32", func(p *corev1.Pod) {
			p.Spec.RuntimeClassName = new("vm")
			p.Spec.NodeSelector = map[string]string{"vm": "no"}
		}, "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no", nil},
		{"L1.32", func(p *corev1.Pod) { p.Spec.Overhead = amounts("1", "1") },
			"pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead", nil},
		{"L1.33", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }, "", func(p *corev1.Pod) bool {
			return p.Labels[corev1.LabelTopologyZone] == "z" && p.Labels[corev1.LabelTopologyRegion] == "r"
		}},
		{"L1.38: a mirror pod stays as it is", func(p *corev1.Pod) { p.Annotations = mirror }, "",
			func(p *corev1.Pod) bool {
				return len(p.Spec.Volumes)+len(p.Spec.Tolerations) == 0 && p.Spec.ServiceAccountName == ""
			}},
		{"L1.38", func(p *corev1.Pod) { p.Annotations = mirror; p.Spec.ServiceAccountName = "default" },
			"a mirror pod may not reference service accounts", nil},
		{"L1.38", func(p *corev1.Pod) {
			p.Annotations = mirror
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
		}, "a mirror pod may not reference secrets", nil},
		{"L1.38", func(p *corev1.Pod) {
			p.Annotations = mirror
			p.Spec.Volumes = []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{
						Sources: []corev1.VolumeProjection{
							{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}}}
		}, "a mirror pod may not use ServiceAccountToken volume projections", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestPod(c.change)
			err := createPod(usual(), p)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %s", err, c.want)
			case c.check != nil && !c.check(p):
				t.Errorf("pod after admission: %+v %+v", p.ObjectMeta, p.Spec)
			}
		})
	}
}

// L1.26
func TestLimitRanger(t *testing.T) {
	c := usual()
	c["limitranges"] = []runtime.Object{&corev1.LimitRange{ObjectMeta: named("l"),
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: amounts("500m", "1Gi"), DefaultRequest: amounts("100m", "1Gi"),
			Max: amounts("1", "2Gi"), Min: amounts("50m", "1Mi"),
			MaxLimitRequestRatio: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5")},
		}}}}}
	p := newTestPod(nil)
	if err := createPod(c, p); err != nil {
		t.Fatal(err)
	}
	want := "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c; cpu, memory request for init container i; cpu, memory limit for init container i"
	if got := p.Annotations["kubernetes.io/limit-ranger"]; got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
	for want, r := range map[string]corev1.ResourceRequirements{
		"maximum cpu usage per Container is 1, but limit is 2": {Limits: amounts("2",
			"1Gi"), Requests: amounts("1", "1Gi")},
		"minimum memory usage per Container is 1Mi, but request is 1Ki": {Limits: amounts("1",
			"1Gi"), Requests: amounts("1", "1Ki")},
		"cpu max limit to request ratio per Container is 5, but provided ratio is 10.000000": {Limits: amounts("1",
			"1Gi"), Requests: amounts("100m", "1Gi")},
	} {
		err := createPod(c, newTestPod(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = r }))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// L1.25
func TestNamespaces(t *testing.T) {
	err := send(usual(), request{kind: "ConfigMap", resource: "configmaps", namespace: "missing", op: admission.Create,
		obj: &corev1.ConfigMap{}})
	if !apierrors.IsNotFound(err) {
		t.Errorf("missing namespace: %v", err)
	}
	err = send(usual(), request{kind: "ConfigMap", resource: "configmaps", namespace: "ending", op: admission.Create,
		obj: &corev1.ConfigMap{}})
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("ending namespace: %v", err)
	}
	if err = send(usual(), request{kind: "Namespace", resource: "namespaces", name: "kube-system",
		op: admission.Delete}); !apierrors.IsForbidden(err) {
		t.Errorf("delete kube-system: %v", err)
	}
	if err = send(usual(), request{kind: "Namespace", resource: "namespaces", name: "ns",
		op: admission.Delete}); err != nil {
		t.Errorf("delete an ordinary namespace: %v", err)
	}
}

// The system's priority classes cannot be deleted; errors of a deletion of several name none.
func TestSystemPriorityClassesStay(t *testing.T) {
	for name, stays := range map[string]bool{"system-node-critical": true, "system-cluster-critical": true,
		"high": false, "": false} {
		err := send(usual(), request{group: schedulingv1.GroupName, kind: "PriorityClass", resource: "priorityclasses",
			name: name, op: admission.Delete})
		if apierrors.IsForbidden(err) != stays || err != nil && !stays {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// L1.28
func TestNewNodeIsTainted(t *testing.T) {
	n := &corev1.Node{ObjectMeta: named("n9")}
	for range 2 { // a second run adds nothing
		if err := send(usual(), request{kind: "Node", resource: "nodes", op: admission.Create, obj: n}); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "node.kubernetes.io/not-ready" ||
		n.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("taints %v", n.Spec.Taints)
	}
}

// L1.35
func TestResizeFitsTheNode(t *testing.T) {
	resize := func(cpu string) error {
		p := newTestPod(func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
			p.Spec.Containers[0].Resources.Requests = amounts(cpu, "1Mi")
		})
		return send(usual(), request{kind: "Pod", resource: "pods", sub: "resize", namespace: "ns", name: "p",
			op: admission.Update, obj: p, old: newTestPod(nil)})
	}
	if err := resize("2"); err != nil {
		t.Error(err)
	}
	if err := resize("3"); !apierrors.HasStatusCause(err, "NodeCapacity") ||
		!strings.Contains(err.Error(),
			"node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000") {
		t.Errorf("%v", err)
	}
}
