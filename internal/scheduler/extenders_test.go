package scheduler

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"carob/internal/scheduler/config"
)

// program is an extender: it answers each verb with a function, in JSON.
type program struct {
	mu      sync.Mutex
	calls   []string // "VERB POD NODES"
	running int
	most    int // calls at the same time
	takes   time.Duration
	answer  map[string]func(args map[string]any) any
}

func (p *program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var args map[string]any
	if err := json.Unmarshal(body, &args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	verb := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	p.mu.Lock()
	p.calls = append(p.calls,
		strings.TrimSpace(fmt.Sprint(verb, " ", podName(args), " ", strings.Join(names(args), ","))))
	p.running++
	p.most = max(p.most, p.running)
	f := p.answer[verb]
	p.mu.Unlock()
	select {
	case <-time.After(p.takes):
	case <-r.Context().Done():
	}
	if f == nil {
		http.Error(w, "what?", http.StatusNotFound)
	} else if err := json.NewEncoder(w).Encode(f(args)); err != nil {
		panic(err)
	}
	p.mu.Lock()
	p.running--
	p.mu.Unlock()
}

func podName(args map[string]any) string {
	if name, ok := args["PodName"]; ok {
		return fmt.Sprint(name)
	}
	return fmt.Sprint(args["Pod"].(map[string]any)["metadata"].(map[string]any)["name"])
}

func names(args map[string]any) []string {
	var out []string
	if list, ok := args["NodeNames"].([]any); ok {
		for _, n := range list {
			out = append(out, fmt.Sprint(n))
		}
	}
	if node, ok := args["Node"].(string); ok {
		out = append(out, node)
	}
	slices.Sort(out)
	return out
}

func (p *program) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.calls
	p.calls = nil
	return out
}

// accept accepts these nodes and refuses the rest with a reason.
func accept(unresolvable bool, nodes ...string) func(map[string]any) any {
	return func(args map[string]any) any {
		r := extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{},
			FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{}}
		for _, n := range names(args) {
			switch {
			case slices.Contains(nodes, n):
				*r.NodeNames = append(*r.NodeNames, n)
			case unresolvable:
				r.FailedAndUnresolvableNodes[n] = "no licence"
			default:
				r.FailedNodes[n] = "no slice left"
			}
		}
		return r
	}
}

func withExtenders(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" +
		"extenders: [" + text + "]"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

const whole = "{urlPrefix: 'http://x/scheduler', filterVerb: filter, prioritizeVerb: rate, weight: 5, bindVerb: bind, " +
	"nodeCacheCapable: true, httpTimeout: 20s, managedResources: [{name: example.com/slice, ignoredByScheduler: true}]}"

// managed adds a request for the extender's resource to a pod.
func managed(p *corev1.Pod) *corev1.Pod {
	p.Spec.Containers[0].Resources.Requests["example.com/slice"] = resource.MustParse("1")
	return p
}

// An extender refuses and rates the nodes of the pods whose resources it manages, and binds them; it is not
// called for other pods. It is called for one pod after the other, while other pods continue.
func TestExtender(t *testing.T) {
	objects := []runtime.Object{node("a", "8"), node("b", "8"), node("c", "1")}
	inConfiguredWorld(t, withExtenders(t, whole), objects, func(w *world) {
		x := &program{takes: time.Second, answer: map[string]func(map[string]any) any{
			"filter": accept(false, "a", "b"),
			"rate": func(map[string]any) any {
				return extenderv1.HostPriorityList{{Host: "b", Score: 1 << 60}, {Host: "a", Score: -5}}
			},
			"bind": func(args map[string]any) any {
				if err := (core{w.client.CoreV1(), w}).Pods("default").Bind(w.Context(), &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: podName(args)},
					Target:     corev1.ObjectReference{Name: names(args)[0]}}, metav1.CreateOptions{}); err != nil {
					return extenderv1.ExtenderBindingResult{Error: err.Error()}
				}
				return extenderv1.ExtenderBindingResult{}
			},
		}}
		w.extender = x
		w.create(managed(pod("p", "2")), managed(pod("q", "2")), pod("plain", "100m"))
		if w.pod("plain").Spec.NodeName == "" {
			t.Error("a pod that no extender manages waits for one")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.on("p", "b")
		w.on("q", "b")
		calls := x.seen()
		slices.Sort(calls)
		equal(t, "asked", calls, "bind p b", "bind q b", "filter p a,b", "filter q a,b", "rate p a,b", "rate q a,b")
		if x.most > 2 { // the binding of one, the filter of the next
			t.Errorf("%d calls at once", x.most)
		}
		// The accepted node becomes full during the call: it is called again.
		x.answer["filter"] = accept(false, "a")
		w.create(managed(pod("late", "6")))
		w.create(func() *corev1.Pod { p := pod("first", "6"); p.Spec.NodeName = "a"; return p }())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := w.pod("late").Spec.NodeName; got != "" {
			t.Errorf("late is on %q, beside the pod that filled it", got)
		}
		if c := w.condition("late", corev1.PodScheduled); !strings.Contains(c.Message, "Insufficient cpu") {
			t.Errorf("condition %q", c.Message)
		}
	})
}

// Refused on all nodes: the reasons are reported, and the next event of the cluster causes another
// call.
func TestExtenderRefuses(t *testing.T) {
	inConfiguredWorld(t, withExtenders(t, whole), []runtime.Object{node("a", "8"), node("c", "1")}, func(w *world) {
		x := &program{answer: map[string]func(map[string]any) any{"filter": accept(true)}}
		w.extender = x
		w.create(managed(pod("p", "2")))
		want := "0/2 nodes are available: 1 Insufficient cpu, 1 no licence. preemption: 0/2 nodes are available: " +
			"2 Preemption is not helpful for scheduling."
		if c := w.condition("p", corev1.PodScheduled); c.Message != want || c.Reason != corev1.PodReasonUnschedulable {
			t.Errorf("condition %s %q, want %q", c.Reason, c.Message, want)
		}
		n := len(x.seen())
		time.Sleep(2 * time.Minute)
		if again := x.seen(); len(again) > 0 || n != 1 {
			t.Errorf("%d calls, and %q without a reason", n, again)
		}
		w.create(func() *corev1.Pod { p := pod("other", "1"); p.Spec.NodeName = "a"; return p }())
		time.Sleep(time.Minute)
		equal(t, "after an event", x.seen(), "filter p a")
	})
}

// An extender that does not respond blocks its pods, unless it is ignorable; a response with a node that was
// not in the request is rejected.
func TestExtenderFails(t *testing.T) {
	ignorable := strings.Replace(whole, "bindVerb: bind,", "bindVerb: bind, ignorable: true,", 1)
	invents := map[string]func(map[string]any) any{"filter": func(map[string]any) any {
		return extenderv1.ExtenderFilterResult{NodeNames: &[]string{"invented"}}
	}}
	fails := map[string]func(map[string]any) any{"filter": func(map[string]any) any {
		return extenderv1.ExtenderFilterResult{Error: "no database"}
	}}
	for name, test := range map[string]struct {
		config  string
		program http.Handler
		message string // empty: the pod is bound
	}{
		"silent":   {whole, nil, "connection refused"},
		"404":      {whole, &program{}, "failed filter with extender at URL http://x/scheduler/filter, code 404"},
		"an error": {whole, &program{answer: fails}, "no database"},
		"an invention": {whole, &program{answer: invents},
			`extender "http://x/scheduler" claims a filtered node "invented" which is not found in the input node list`},
		"slow":            {whole, &program{takes: time.Minute, answer: fails}, "context deadline exceeded"},
		"silent, ignored": {ignorable, nil, ""},
		"error, ignored":  {ignorable, &program{answer: fails}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inConfiguredWorld(t, withExtenders(t, test.config), []runtime.Object{node("a", "8")}, func(w *world) {
				w.extender = test.program
				w.create(managed(pod("p", "2")))
				time.Sleep(time.Hour)
				synctest.Wait()
				c := w.condition("p", corev1.PodScheduled)
				switch {
				case test.message == "":
					w.on("p", "a")
				case c.Reason != corev1.PodReasonSchedulerError || !strings.Contains(c.Message, test.message):
					t.Errorf("condition %s %q, want %q", c.Reason, c.Message, test.message)
				}
				if x, ok := test.program.(*program); ok {
					if n := len(x.seen()); test.message != "" && (n < 10 || n > 400) {
						t.Errorf("%d calls in an hour", n)
					}
				}
			})
		})
	}
}

// Reasons for each of many nodes are shortened to what a condition may contain.
func TestExtenderGivesManyReasons(t *testing.T) {
	var objects []runtime.Object
	for i := range 100 {
		objects = append(objects, node(fmt.Sprint("n", i), "8"))
	}
	refuses := map[string]func(map[string]any) any{"filter": func(args map[string]any) any {
		r := extenderv1.ExtenderFilterResult{FailedNodes: extenderv1.FailedNodesMap{}}
		for _, n := range names(args) {
			r.FailedNodes[n] = n + strings.Repeat("x", 100_000)
		}
		return r
	}}
	inConfiguredWorld(t, withExtenders(t, whole), objects, func(w *world) {
		w.extender = &program{answer: refuses}
		w.create(managed(pod("p", "2")))
		synctest.Wait()
		c := w.condition("p", corev1.PodScheduled)
		if n := len(c.Message); n < 30000 || n > 32768 || !strings.HasSuffix(c.Message, " ...") {
			t.Errorf("%d bytes: %.100q", n, c.Message)
		}
	})
}

// An extender may remove nodes and victims from a preemption; additions are errors.
func TestExtenderChangesPreemption(t *testing.T) {
	const text = "{urlPrefix: 'http://x', preemptVerb: preempt, nodeCacheCapable: true}"
	for name, test := range map[string]struct {
		answer map[string]*extenderv1.MetaVictims
		gone   []string
		err    string
	}{
		"the other node": {map[string]*extenderv1.MetaVictims{"b": {Pods: []*extenderv1.MetaPod{{UID: "on-b"}}}},
			[]string{"on-b"}, ""},
		"none": {nil, nil, ""},
		"a pod of another node": {map[string]*extenderv1.MetaVictims{"b": {Pods: []*extenderv1.MetaPod{{UID: "on-a"}}}},
			nil, "but the pod is not found on that node"},
		"a victim without a UID": {map[string]*extenderv1.MetaVictims{"b": {Pods: []*extenderv1.MetaPod{nil}}}, nil,
			"a victim without a UID on node: b"},
		"an invented node": {map[string]*extenderv1.MetaVictims{"z": {}}, nil, "nodes that were not in the request"},
	} {
		t.Run(name, func(t *testing.T) {
			victim := func(name, node string, priority int32) *corev1.Pod {
				p := withPriority(pod(name, "8"), priority)
				p.Spec.NodeName, p.UID = node, types.UID(name)
				return p
			}
			a, b := victim("on-a", "a", 1), victim("on-b", "b", 2) // without the extender the one on a is the victim
			inConfiguredWorld(t, withExtenders(t, text), []runtime.Object{node("a", "8"), node("b", "8"), a, b},
				func(w *world) {
					x := &program{answer: map[string]func(map[string]any) any{"preempt": func(map[string]any) any {
						return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: test.answer}
					}}}
					w.extender = x
					w.create(withPriority(pod("p", "8"), 10))
					synctest.Wait()
					var gone []string
					for _, name := range []string{"on-a", "on-b"} {
						_, err := w.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
						if err != nil {
							gone = append(gone, name)
						}
					}
					equal(t, "gone", gone, test.gone...)
					if c := w.condition("p", corev1.PodScheduled); !strings.Contains(c.Message, test.err) {
						t.Errorf("condition %q, want %q", c.Message, test.err)
					}
				})
		})
	}
}
