package policy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"carob/internal/base/errkind"
	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/network"
)

// running is an Enforcer that follows an API, in the namespace of the thread.
func running(t *testing.T, name string, api *fake.Clientset) *Enforcer {
	t.Helper()
	e, err := New(Config{Table: name, Node: "here"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	go func() {
		_ = e.Run(ctx, api)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = e.Close()
	})
	return e
}

func placeOf(uid string, n int, labels map[string]string) network.Place {
	return network.Place{UID: uid, Namespace: "x", Name: "pod-" + uid, SandboxID: "sandbox-" + uid, Labels: labels,
		IPs: []netip.Addr{at(n)}}
}

func apiPod(uid, ns string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: ns, Name: "pod-" + uid, Labels: labels},
		Spec: corev1.PodSpec{NodeName: "here", Containers: []corev1.Container{{Name: "c",
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}}}}
}

func deny(name string, app ...string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}}
	if len(app) > 0 {
		np.Spec.PodSelector.MatchLabels = map[string]string{"app": app[0]}
	}
	return np
}

func listing(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	return string(out)
}

func isolated(t *testing.T, n int) bool {
	t.Helper()
	for line := range strings.Lines(listing(t)) {
		if strings.Contains(line, at(n).String()+" : goto in-") {
			return true
		}
	}
	return false
}

func watches(api *fake.Clientset) map[string]int {
	n := map[string]int{}
	for _, a := range api.Actions() {
		if w, ok := a.(kubetesting.WatchAction); ok {
			n[w.GetResource().Resource]++
		}
	}
	return n
}

// A pod is isolated when Admit returns; nothing runs without policies; a pod that no policy selects
// waits for nothing.
func TestAdmit(t *testing.T) {
	in(t, func(t *testing.T) {
		ctx := context.Background()
		api := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		e := running(t, table, api)
		if err := e.Admit(ctx, placeOf("0", 0, nil)); err != nil {
			t.Fatal(err)
		}
		if all := listing(t); strings.Contains(all, table) {
			t.Errorf("there is a table without policies:\n%s", all)
		}
		if w := watches(api); w["pods"]+w["namespaces"] > 0 {
			t.Errorf("watches without policies: %v", w)
		}
		policy := api.NetworkingV1().NetworkPolicies("x")
		if _, err := policy.Create(ctx, deny("deny", "web"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "the policy is known", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.plan.Policies() == 1
		})
		// The watch has not delivered this pod yet: its sandbox's labels decide.
		if err := e.Admit(ctx, placeOf("1", 1, map[string]string{"app": "web"})); err != nil {
			t.Fatal(err)
		}
		if !isolated(t, 1) || isolated(t, 0) {
			t.Errorf("not isolated when it may send:\n%s", listing(t))
		}
		// Then the API's labels count.
		if _, err := api.CoreV1().Pods("x").Create(ctx, apiPod("1", "x", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "it is open", func() bool { return !isolated(t, 1) })
		pod := apiPod("1", "x", map[string]string{"app": "web"})
		if _, err := api.CoreV1().Pods("x").Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "it is isolated", func() bool { return isolated(t, 1) })
		// Its object is deleted while its processes still run: it stays isolated, and is no pod's peer.
		if err := api.CoreV1().Pods("x").Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "it is gone", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.objects[identity("1", "x", "pod-1")].deleted
		})
		// The next answer comes after the writer has been here.
		if err := e.Admit(ctx, placeOf("2", 2, map[string]string{"app": "web"})); err != nil {
			t.Fatal(err)
		}
		if !isolated(t, 1) {
			t.Error("a pod whose object is gone is open")
		}
		e.Free("sandbox-1")
		testwait.For(t, "its address is free", func() bool { return !isolated(t, 1) })
		if err := policy.Delete(ctx, "deny", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "the table is gone", func() bool { return !strings.Contains(listing(t), table) })
		// The next policy finds everything again.
		if _, err := policy.Create(ctx, deny("again"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "all are isolated", func() bool { return isolated(t, 0) && isolated(t, 2) })
	})
}

// A pod that claims to be the mirror of a pod in another namespace does not change the rules of that pod, neither while
// it exists nor when it is gone. A real mirror, in the namespace of its static pod, decides.
func TestForgedMirror(t *testing.T) {
	in(t, func(t *testing.T) {
		e := enforcer(t)
		_ = e.plan.SetPolicy(deny("deny", "web"))
		victim := identity("1", "x", "pod-1")
		if err := e.Admit(t.Context(), placeOf("1", 1, nil)); err != nil {
			t.Fatal(err)
		}
		api := fake.NewClientset(apiPod("1", "x", map[string]string{"app": "web"}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			e.watchPods(ctx, api)
			close(done)
		}()
		defer func() {
			cancel()
			<-done
		}()
		state := func() (isolated, gone, forged bool) {
			e.mu.Lock()
			defer e.mu.Unlock()
			o := e.objects[victim]
			return e.plan.Isolated(victim), o != nil && o.deleted, e.objects[identity("1", "evil", "pod-9")] != nil
		}
		testwait.For(t, "the pod is isolated", func() bool { isolated, _, _ := state(); return isolated })
		forged := apiPod("9", "evil", nil)
		forged.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
		for _, call := range []func() error{
			func() error {
				_, err := api.CoreV1().Pods("evil").Create(t.Context(), forged, metav1.CreateOptions{})
				return err
			},
			func() error {
				return api.CoreV1().Pods("evil").Delete(t.Context(), forged.Name, metav1.DeleteOptions{})
			},
		} {
			_, _, before := state()
			if err := call(); err != nil {
				t.Fatal(err)
			}
			testwait.For(t, "the watch has delivered it", func() bool { _, _, now := state(); return now != before })
			if isolated, gone, _ := state(); !isolated || gone {
				t.Errorf("a forged mirror changed the rules of another pod: isolated %v, gone %v", isolated, gone)
			}
		}
		mirror := apiPod("mirror", "x", map[string]string{"app": "web"})
		mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		if _, err := api.CoreV1().Pods("x").Create(t.Context(), mirror, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		static := placeOf("hash", 2, nil)
		static.Name = mirror.Name
		e.mu.Lock()
		e.occupy(static)
		e.mu.Unlock()
		testwait.For(t, "a static pod has the labels of its mirror", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.plan.Isolated(identity("hash", "x", mirror.Name))
		})
	})
}

// Admit returns for a pod that a policy selects when its rules are written, not before. There is no writer in this
// test: the others do not wait.
func TestAdmitWaitsForTheWriter(t *testing.T) {
	in(t, func(t *testing.T) {
		e, both := enforcer(t), halves()
		defer closeAll(both)
		_ = e.plan.SetPolicy(deny("deny", "web"))
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		web := placeOf("1", 1, map[string]string{"app": "web"})
		if err := e.Admit(ended, web); !errors.Is(err, context.Canceled) {
			t.Errorf("it did not wait: %v", err)
		}
		if err := e.Admit(ended, placeOf("2", 2, nil)); err != nil {
			t.Errorf("a pod that no policy selects waited: %v", err)
		}
		answer := make(chan error)
		go func() { answer <- e.Admit(context.Background(), web) }()
		testwait.For(t, "the pod is isolated", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.plan.Isolated(identity("1", "x", "pod-1"))
		})
		if err := e.put(t.Context(), both); err != nil {
			t.Fatal(err)
		}
		if err := <-answer; err != nil || !isolated(t, 1) {
			t.Errorf("%v\n%s", err, listing(t))
		}
		// Another pod, which no policy selects, has the address now: the old rules are removed first.
		e.Free(web.SandboxID)
		if err := e.Admit(ended, placeOf("3", 1, nil)); !errors.Is(err, context.Canceled) {
			t.Errorf("it has the rules of an earlier pod: %v", err)
		}
	})
}

// Without the policies, or without the kernel, no pod is attached; the error names the reason.
func TestAdmitFailsClosed(t *testing.T) {
	in(t, func(t *testing.T) {
		ctx := context.Background()
		failing := fake.NewClientset()
		tried := make(chan bool)
		failing.PrependReactor("list", "networkpolicies", func(kubetesting.Action) (bool, runtime.Object, error) {
			select {
			case tried <- true:
			case <-t.Context().Done():
			}
			return true, nil, errors.New("networkpolicy x/broken cannot be read")
		})
		e := running(t, table, failing)
		e.patience = time.Millisecond
		err := e.Admit(ctx, placeOf("1", 1, nil))
		if errkind.Of(err) != errkind.Unavailable || !strings.Contains(err.Error(), "x/pod-1") {
			t.Errorf("without policies: %v", err)
		}
		<-tried
		<-tried // the first list has ended, and its error is known
		err = e.Admit(ctx, placeOf("1", 1, nil))
		if errkind.Of(err) != errkind.Unavailable || !strings.Contains(err.Error(), "x/broken cannot be read") {
			t.Errorf("with a policy that cannot be read: %v", err)
		}
		// The kernel refuses every table of this name.
		e = running(t, "no name for a table", fake.NewClientset(deny("deny", "web")))
		if err := e.Admit(ctx, placeOf("2", 2, nil)); err != nil {
			t.Errorf("a pod that no policy selects: %v", err)
		}
		err = e.Admit(ctx, placeOf("1", 1, map[string]string{"app": "web"}))
		if errkind.Of(err) != errkind.Unavailable || !strings.Contains(err.Error(), "cannot be put in force") {
			t.Errorf("without the kernel: %v", err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.places[identity("1", "x", "pod-1")]) > 0 || e.plan.Isolated(identity("1", "x", "pod-1")) {
			t.Error("the pod is attached")
		}
	})
}

// Rules that another program removes or changes are restored.
func TestChangedRulesAreRestored(t *testing.T) {
	in(t, func(t *testing.T) {
		api := fake.NewClientset(deny("deny"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		e := running(t, table, api)
		if err := e.Admit(context.Background(), placeOf("1", 1, nil)); err != nil {
			t.Fatal(err)
		}
		want := kernel(t)
		for _, script := range []string{"flush ruleset", "delete table ip " + table,
			"delete element ip " + table + " isolated-in { " + at(1).String() + " }",
			"flush chain ip " + table + " ingress",
			"add element ip " + table + " own { 10.9.9.9 . 10.9.9.9 }"} {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
			testwait.For(t, "all is as it was after "+script, func() bool { return slices.Equal(kernel(t), want) })
		}
		// Another process takes over, with what the API has now.
		next := running(t, table, fake.NewClientset(deny("deny"), deny("another")))
		next.Adopt([]network.Place{placeOf("1", 1, nil)})
		testwait.For(t, "the new process's table", func() bool { return strings.Contains(listing(t), "x/another") })
	})
}

// A flow that is allowed ends when it no longer is, and an address that is used again inherits none.
func TestFlows(t *testing.T) {
	in(t, func(t *testing.T) {
		l := newLab(t)
		ctx := context.Background()
		allow := deny("allow", "server")
		allow.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}}},
			Ports: []networkingv1.NetworkPolicyPort{
				{Port: new(intstr.FromInt32(80)), Protocol: new(corev1.ProtocolUDP)}}}}
		api := fake.NewClientset(allow, deny("closed", "closed"), apiPod("0", "x", map[string]string{"app": "friend"}))
		e := running(t, table, api)
		allowed := placeOf("0", 0, map[string]string{"app": "friend"})
		server := placeOf("1", 1, map[string]string{"app": "server"})
		for _, p := range []network.Place{allowed, server} {
			if err := e.Admit(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		flow := func() (answers func() bool) {
			var c net.Conn
			if err := netns.Do(l.pods[0], func() (err error) {
				c, err = net.Dial("udp", netip.AddrPortFrom(at(1), 80).String())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return func() bool {
				_, _ = c.Write([]byte("x"))
				_ = c.SetReadDeadline(time.Now().Add(mustNot))
				n, err := c.Read(make([]byte, 1))
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				return n == 1
			}
		}
		first := flow()
		testwait.For(t, "the friend is served", first)
		// The friend is one no longer: the flow, which never pauses, ends.
		if _, err := api.CoreV1().Pods("x").Update(ctx, apiPod("0", "x", nil), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.For(t, "the flow has ended", func() bool { return !first() })
		if _, err := api.CoreV1().Pods("x").Update(ctx, apiPod("0", "x", map[string]string{"app": "friend"}),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		second := flow()
		testwait.For(t, "the friend is served again", second)
		// The server is removed, and a pod without a Service gets its address.
		e.Free(server.SandboxID)
		testwait.For(t, "the address is open", second)
		if err := e.Admit(ctx, placeOf("9", 1, map[string]string{"app": "closed"})); err != nil {
			t.Fatal(err)
		}
		if second() {
			t.Error("the flow of an earlier pod goes on")
		}
	})
}
