package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// use is one call of kubectl and its required output.
type use struct {
	args  string // split at blanks
	stdin string
	want  []string
	fails bool
}

const configMapA = `---
{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {app: a}}, data: {k: "%s"}}`

// Every subcommand that `kubectl --help` names, and every one of theirs, is called
// and does its work, with the kubectl in carob and with the one that is installed,
// which may be older. cp, port-forward, debug and run have tests of their own.
func TestEverySubcommand(t *testing.T) {
	built := filepath.Join(filepath.Dir(carobBin), "kubectl")
	t.Run("built in", func(t *testing.T) { tryAll(t, shared, built) })
	if kubectlBin != built {
		t.Run("installed", func(t *testing.T) { tryAll(t, shared, kubectlBin) })
	}
}

func tryAll(t *testing.T, c *cluster, kubectl string) {
	kube := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := c.command(ctx, args...)
		cmd.Path, cmd.Args[0] = kubectl, kubectl
		return cmd
	}
	there := subcommands(t, func(args ...string) *exec.Cmd { return kube(t.Context(), args...) })
	ns := "subcommands"
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	copied := "--kubeconfig=" + filepath.Join(dir, "config")
	crt, key := servingPair(t, "pair.example")
	tls := "--cert=" + write("tls.crt", decoded(t, crt)) + " --key=" + write("tls.key", decoded(t, key))
	a2 := write("a.yaml", fmt.Sprintf(configMapA, "two"))
	write("kustomization.yaml", "resources: [a.yaml]\nnamePrefix: made-\n")
	c.kubectl(t, "create", "namespace", ns)
	t.Cleanup(func() { c.kubectl(t, "delete", "namespace", ns) })
	steps := []use{
		{args: "apply -f -", stdin: fmt.Sprintf(configMapA, "one"), want: []string{"configmap/a created"}},
		{args: "diff -f " + a2, fails: true, want: []string{"-  k: one", "+  k: two"}},
		{args: "apply -f " + a2, want: []string{"configmap/a configured"}},
		{args: "apply --server-side --force-conflicts -f " + a2, want: []string{"serverside-applied"}},
		{args: "apply view-last-applied configmap/a", want: []string{"k: two"}},
		{args: "apply edit-last-applied configmap/a", want: []string{"edited"}},
		{args: "apply set-last-applied -f " + a2, want: []string{"configured"}},
		{args: "kustomize " + dir, want: []string{"name: made-a"}},
		{args: "apply -k " + dir, want: []string{"configmap/made-a created"}},
		{args: "get configmap a -o jsonpath={.data.k}", want: []string{"two"}},
		{args: "patch configmap a -p {\"data\":{\"k\":\"three\"}}", want: []string{"patched"}},
		{args: "patch configmap a --type=json -p [{\"op\":\"add\",\"path\":\"/data/j\",\"value\":\"x\"}]",
			want: []string{"patched"}},
		{args: "replace -f " + a2, want: []string{"replaced"}},
		{args: "label configmap a tier=web", want: []string{"labeled"}},
		{args: "annotate configmap a note=yes", want: []string{"annotated"}},
		{args: "edit configmap a", want: []string{"edited"}},
		{args: "get configmap a --show-labels", want: []string{"tier=web"}},
		{args: "describe configmap a", want: []string{"note: yes", "edited"}},
		{args: "explain ingress.spec.rules", want: []string{"host"}},
		{args: "wait configmap/a --for=jsonpath={.data.k}=edited --timeout=2m", want: []string{"condition met"}},

		{args: "create deployment web --image=busybox:1.36 --replicas=2", want: []string{"created"}},
		{args: "wait deployment/web --for=jsonpath={.status.observedGeneration}=1 --timeout=2m",
			want: []string{"condition met"}},
		{args: "set image deployment/web busybox=busybox:1.37", want: []string{"image updated"}},
		{args: "set env deployment/web A=B", want: []string{"env updated"}},
		{args: "set resources deployment/web --requests=cpu=10m", want: []string{"updated"}},
		{args: "set serviceaccount deployment/web default", want: []string{"serviceaccount updated"}},
		{args: "rollout status deployment/web --watch=false", want: []string{"deployment"}},
		{args: "rollout history deployment/web", want: []string{"deployment.apps/web"}},
		{args: "wait deployment/web --for=jsonpath={.status.observedGeneration}=5 --timeout=2m",
			want: []string{"condition met"}},
		{args: "rollout undo deployment/web", want: []string{"rolled back"}},
		{args: "scale deployment/web --replicas=0", want: []string{"scaled"}},
		{args: "rollout pause deployment/web", want: []string{"paused"}},
		{args: "rollout resume deployment/web", want: []string{"resumed"}},
		{args: "rollout restart deployment/web", want: []string{"restarted"}},
		{args: "autoscale deployment web --min=1 --max=3 --cpu-percent=80", want: []string{"autoscaled"}},
		{args: "get hpa web", want: []string{"Deployment/web"}},
		// W7.91: without a target for the CPU, the API server's default is in force
		{args: "autoscale deployment web --name=plain --min=2 --max=3", want: []string{"autoscaled"}},
		{args: "get hpa plain -o jsonpath={.spec.scaleTargetRef.name}/{.spec.minReplicas}/{.spec.maxReplicas}/" +
			"{.spec.metrics[*].resource.name}/{.spec.metrics[*].resource.target.averageUtilization}",
			want: []string{"web/2/3/cpu/80"}},
		{args: "expose deployment web --port=80", want: []string{"exposed"}},
		{args: "create service clusterip plain --tcp=80:8080", want: []string{"created"}},
		{args: "create service nodeport port --tcp=80:8080", want: []string{"created"}},
		{args: "create service loadbalancer lb --tcp=80:8080", want: []string{"created"}},
		{args: "create service externalname far --external-name=far.example", want: []string{"created"}},
		{args: "set selector service/plain app=other", want: []string{"selector updated"}},
		{args: "create secret docker-registry pulls --docker-username=u --docker-password=p",
			want: []string{"created"}},
		{args: "create secret tls pair " + tls, want: []string{"created"}},
		{args: "create secret generic s --from-literal=a=b", want: []string{"created"}},
		{args: "create configmap m --from-literal=a=b", want: []string{"created"}},
		{args: "create serviceaccount robot", want: []string{"created"}},
		{args: "create role reader --verb=get,list --resource=pods", want: []string{"created"}},
		{args: "create rolebinding robots --role=reader --serviceaccount=subcommands:robot", want: []string{"created"}},
		{args: "set subject rolebinding/robots --user=jane", want: []string{"subjects updated"}},
		{args: "create clusterrole e2e-reader --verb=get --resource=nodes", want: []string{"created"}},
		{args: "create clusterrolebinding e2e-readers --clusterrole=e2e-reader --group=readers",
			want: []string{"created"}},
		{args: "auth can-i get nodes --as=jane --as-group=readers", want: []string{"yes"}},
		{args: "delete clusterrolebinding/e2e-readers clusterrole/e2e-reader", want: []string{"deleted"}},
		{args: "create priorityclass e2e-high --value=1000", want: []string{"created"}},
		{args: "delete priorityclass e2e-high", want: []string{"deleted"}},
		{args: "create namespace subcommands-2", want: []string{"created"}},
		{args: "delete namespace subcommands-2", want: []string{"deleted"}},
		{args: "create quota q --hard=pods=100", want: []string{"created"}},
		{args: "create job once --image=busybox -- true", want: []string{"created"}},
		{args: "create cronjob nightly --image=busybox --schedule=@daily -- true", want: []string{"created"}},
		{args: "create ingress i --rule=example.com/*=web:80", want: []string{"created"}},
		{args: "create poddisruptionbudget b --selector=app=web --min-available=1", want: []string{"created"}},
		{args: "create token robot", want: []string{"."}},
		{args: "auth can-i list pods --as=system:serviceaccount:subcommands:robot", want: []string{"yes"}},
		{args: "auth can-i delete pods --as=system:serviceaccount:subcommands:robot", fails: true,
			want: []string{"no"}},
		{args: "auth can-i --list --as=system:serviceaccount:subcommands:robot", want: []string{"pods", "[get list]"}},
		{args: "auth reconcile -f -",
			stdin: "---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader, namespace: subcommands}, rules: [{apiGroups: [\"\"], resources: [services], verbs: [get]}]}", want: []string{"reconciled"}},
		{args: "auth can-i get services --as=system:serviceaccount:subcommands:robot", want: []string{"yes"}},
		{args: "apply -f -",
			stdin: "---\n{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: robot-token, annotations: {kubernetes.io/service-account.name: robot}}}", want: []string{"created"}},
		{args: "wait secret/robot-token --for=jsonpath={.data.token} --timeout=2m", want: []string{"met"}},
		{args: "apply --namespace=kube-system -f -", stdin: endedToken(), want: []string{"created"}},
		{args: "wait secret/bootstrap-token-abcdef --namespace=kube-system --for=delete --timeout=2m"},
		{args: "auth whoami", want: []string{"kubernetes-admin"}},
		{args: "get all,ingress,quota,pdb,serviceaccount",
			want: []string{"deployment.apps/web", "cronjob.batch/nightly", "ingress.networking.k8s.io/i"}},
		{args: "describe deployment web", want: []string{"Replicas:"}},
		{args: "describe service web", want: []string{"IP:"}},
		{args: "delete deployment web", want: []string{"deleted"}},

		{args: "apply -f -", stdin: signingRequest(t, "csr-a"), want: []string{"created"}},
		{args: "certificate approve csr-a", want: []string{"approved"}},
		{args: "get csr csr-a", want: []string{"Approved"}},
		{args: "delete csr csr-a", want: []string{"deleted"}},
		{args: "apply -f -", stdin: signingRequest(t, "csr-b"), want: []string{"created"}},
		{args: "certificate deny csr-b", want: []string{"denied"}},
		{args: "delete csr csr-b", want: []string{"deleted"}},

		{args: "run echo --image=busybox:1.36 -l app=echo --overrides={\"spec\":{\"containers\":[{\"name\":\"echo\",\"image\":\"busybox:1.36\",\"stdin\":true,\"stdinOnce\":true,\"command\":[\"cat\"]}],\"restartPolicy\":\"Never\"}}", want: []string{"created"}},
		{args: "wait pod/echo --for=condition=Ready --timeout=2m", want: []string{"met"}},
		{args: "attach echo -i", stdin: "said to cat\n", want: []string{"said to cat"}},
		{args: "wait pod/echo --for=jsonpath={.status.phase}=Succeeded --timeout=2m", want: []string{"met"}},
		{args: "logs echo", want: []string{"said to cat"}},
		{args: "events --for=pod/echo", want: []string{"Started"}},
		{args: "run sleeper --image=busybox:1.36 -l app=sleeper --command -- sleep 3600", want: []string{"created"}},
		{args: "wait pod/sleeper --for=condition=Ready --timeout=2m", want: []string{"met"}},
		{args: "exec sleeper -- hostname", want: []string{"sleeper"}},
		{args: "cordon e2e-node", want: []string{"cordoned"}},
		{args: "get node e2e-node", want: []string{"SchedulingDisabled"}},
		{args: "drain e2e-node --pod-selector=app=sleeper --force --grace-period=0",
			want: []string{"evicting pod", "drained"}},
		{args: "uncordon e2e-node", want: []string{"uncordoned"}},
		{args: "taint node e2e-node tried=yes:PreferNoSchedule", want: []string{"tainted"}},
		{args: "taint node e2e-node tried-", want: []string{"untainted"}},
		{args: "describe node e2e-node", want: []string{"Allocatable:", "Allocated resources"}},
		{args: "top pod --namespace=kube-system", want: []string{"No resources found"}}, // new pods have no figures yet
		{args: "top node", want: []string{"CPU(cores)", "e2e-node"}},

		{args: "cluster-info", want: []string{"Kubernetes control plane"}},
		{args: "cluster-info dump --namespaces=subcommands", want: []string{"said to cat", `"kind": "NodeList"`}},
		{args: "api-resources", want: []string{"deployments", "networking.k8s.io/v1"}},
		{args: "api-versions", want: []string{"apps/v1", "storage.k8s.io/v1"}},
		{args: "version", want: []string{"Server Version: v1."}},
		{args: "config view", want: []string{"current-context"}},
		{args: "config set-cluster far --server=https://far.example " + copied, want: []string{`Cluster "far" set`}},
		{args: "config get-clusters " + copied, want: []string{"far"}},
		{args: "config set-credentials jane --token=t " + copied, want: []string{`User "jane" set`}},
		{args: "config get-users " + copied, want: []string{"jane"}},
		{args: "config set-context janes --cluster=far --user=jane " + copied,
			want: []string{`Context "janes" created`}},
		{args: "config rename-context janes there " + copied, want: []string{"renamed"}},
		{args: "config use-context there " + copied, want: []string{"Switched"}},
		{args: "config current-context " + copied, want: []string{"there"}},
		{args: "config get-contexts " + copied, want: []string{"there", "far", "jane"}},
		{args: "config set contexts.there.namespace other " + copied, want: []string{"set"}},
		{args: "config unset contexts.there.namespace " + copied, want: []string{"unset"}},
		{args: "config delete-context there " + copied, want: []string{"deleted context there"}},
		{args: "config delete-user jane " + copied, want: []string{"deleted user jane"}},
		{args: "config delete-cluster far " + copied, want: []string{"deleted cluster far"}},
		{args: "kuberc view --kuberc=" +
			write("kuberc", "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n"),
			want: []string{"Preference"}},
		{args: "kuberc set --section=aliases --name=pods --command=get --kuberc=" + filepath.Join(dir, "kuberc"),
			want: []string{"pdated"}},
		{args: "completion bash", want: []string{"__start_kubectl"}},
		{args: "plugin list --name-only", fails: true, want: []string{"unable to find any kubectl plugins"}},
	}
	tried := []string{"run", "port-forward", "cp", "debug", "delete", "proxy"} // proxy below
	for _, u := range steps {
		args := strings.Fields(u.args)
		if !slices.Contains(there, args[0]) {
			continue // not in this version
		}
		tried = append(tried, u.args)
		if args[0] != "kuberc" && args[0] != "plugin" { // they take no flags in front
			args = append([]string{"--namespace=" + ns}, args...)
		}
		cmd := kube(t.Context(), args...)
		cmd.Env = append(cmd.Env, "KUBE_EDITOR=sed -i s/two/edited/")
		cmd.Stdin = strings.NewReader(u.stdin)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); (err != nil) != u.fails {
			t.Errorf("kubectl %s: %v\n%s", u.args, err, out.String())
			continue
		}
		contains(t, "kubectl "+u.args, out.String(), u.want...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tryProxy(t, kube(ctx, "proxy", "--port=0"))
	for _, name := range there {
		if !slices.ContainsFunc(tried, func(args string) bool { return strings.HasPrefix(args+" ", name+" ") }) {
			t.Errorf("kubectl %s was not tried", name)
		}
	}
}

// subcommands are all that the help lists, as "create" and "create secret tls".
func subcommands(t *testing.T, kube func(args ...string) *exec.Cmd) []string {
	t.Helper()
	name := regexp.MustCompile(`(?m)^  ([a-z-]+)  +[A-Z]`)
	slots := make(chan struct{}, runtime.NumCPU())
	var look func(path []string) ([]string, error)
	look = func(path []string) ([]string, error) {
		slots <- struct{}{}
		help, err := output(kube(append(slices.Clone(path), "--help")...))
		<-slots
		if err != nil {
			return nil, fmt.Errorf("%s --help: %w", strings.Join(path, " "), err)
		}
		if len(path) > 0 {
			_, below, found := strings.Cut(help, "\nAvailable Commands:\n")
			if !found {
				return nil, nil
			}
			help, _, _ = strings.Cut(below, "\n\n")
		}
		var found []string
		names := name.FindAllStringSubmatch(help, -1)
		below, errs := make([][]string, len(names)), make([]error, len(names))
		var each sync.WaitGroup
		for i, m := range names {
			sub := append(slices.Clone(path), m[1])
			each.Go(func() { below[i], errs[i] = look(sub) })
		}
		each.Wait()
		for i, m := range names {
			found = append(found, strings.Join(append(slices.Clone(path), m[1]), " "))
			found = append(found, below[i]...)
		}
		return found, errors.Join(errs...)
	}
	all, err := look(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 80 {
		t.Errorf("help lists %d commands only: %q", len(all), all)
	}
	return all
}

func decoded(t *testing.T, text string) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func tryProxy(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	s := bufio.NewScanner(pipe)
	if !s.Scan() {
		t.Fatal("proxy printed nothing")
	}
	words := strings.Fields(s.Text())
	contains(t, "proxied page", get(t, "http://"+words[len(words)-1]+"/api/v1/namespaces/subcommands"),
		`"kind":"Namespace"`)
}

// signingRequest is the manifest of a CertificateSigningRequest for a client.
func signingRequest(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		t.Fatal(err)
	}
	body := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return fmt.Sprintf(
		"---\n{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: %s}, spec: {signerName: kubernetes.io/kube-apiserver-client, usages: [client auth], request: %s}}",
		name, base64.StdEncoding.EncodeToString(body))
}

// endedToken is an expired bootstrap token, which a controller removes.
func endedToken() string {
	return fmt.Sprintf(
		"---\n{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, metadata: {name: bootstrap-token-abcdef, namespace: kube-system}, "+
			"stringData: {token-id: abcdef, token-secret: 0123456789abcdef, expiration: %q}}",
		time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
}
