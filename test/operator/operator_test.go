// Package operator runs an operator made with controller-runtime, unchanged, against a carob cluster: a definition
// with a scale subresource, children with owner references, a finalizer, events, a validating webhook, and leader
// election, also while carob is killed and starts again.
//
// It is a module of its own, because controller-runtime is not part of carob, and it uses carob only through its
// command line and API.
package operator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"
)

func newScheme(t *testing.T) *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), addToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// operator is one running copy of the operator.
type operator struct {
	stop func() // returns when it has ended
	mu   sync.Mutex
	bye  []string // Websites that it has finalized
}

// start runs a copy that becomes the leader as soon as no other is.
func start(t *testing.T, cfg *rest.Config) *operator {
	o := &operator{}
	m, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: newScheme(t), Metrics: server.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "website-operator", LeaderElectionNamespace: "default",
		LeaderElectionReleaseOnCancel: true,
		Controller:                    config.Controller{SkipNameValidation: ptr.To(true)}, // two copies in one process
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &reconciler{Client: m.GetClient(), recorder: m.GetEventRecorder("website-operator"),
		goodbye: func(name string) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.bye = append(o.bye, name)
		}}
	if err := ctrl.NewControllerManagedBy(m).For(&Website{}).Owns(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).
		Complete(r); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	o.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("operator:", err)
		}
	})
	t.Cleanup(o.stop)
	return o
}

// user is a user who creates Websites.
type user struct {
	*testing.T
	client.Client
}

// until polls until ok returns true, for at most two minutes.
func (u *user) until(what string, ok func(ctx context.Context) (bool, error)) {
	u.Helper()
	ctx, cancel := context.WithTimeout(u.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		done, err := ok(ctx)
		if done {
			return
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			u.Fatalf("%s: not so after two minutes (last error: %v)", what, last)
		case <-tick.C:
		}
	}
}

// ready waits until a Website reports so many pods, and that its Ready condition is of the newest generation.
func (u *user) ready(name string, replicas int32) {
	u.Helper()
	u.until(name+" is ready", func(ctx context.Context) (bool, error) {
		var w Website
		err := u.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &w)
		c := meta.FindStatusCondition(w.Status.Conditions, "Ready")
		return err == nil && w.Status.Replicas == replicas && c != nil && c.Status == metav1.ConditionTrue &&
			c.ObservedGeneration == w.Generation, err
	})
}

// pods are the names and texts of the pods of a Website that are not ending.
func (u *user) pods(name string) (texts []string) {
	u.Helper()
	var list corev1.PodList
	if err := u.List(u.Context(), &list, client.InNamespace("default"),
		client.MatchingLabels{"website": name}); err != nil {
		u.Fatal(err)
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			texts = append(texts, p.Annotations["web.example.com/text"])
		}
	}
	return texts
}

func (u *user) patch(name string, change func(*Website)) {
	u.Helper()
	var w Website
	if err := u.Get(u.Context(), client.ObjectKey{Namespace: "default", Name: name}, &w); err != nil {
		u.Fatal(err)
	}
	before := w.DeepCopyObject().(*Website)
	change(&w)
	if err := u.Patch(u.Context(), &w, client.MergeFrom(before)); err != nil {
		u.Fatal(err)
	}
}

func newUser(t *testing.T, cfg *rest.Config) *user {
	c, err := client.New(cfg, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return &user{t, c}
}

// define stores the definition and waits until its kind is served.
func (u *user) define() {
	text, err := os.ReadFile(filepath.Join("testdata", "crd.yaml"))
	if err != nil {
		u.Fatal(err)
	}
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		u.Fatal(err)
	}
	if err := u.Create(u.Context(), &crd); err != nil {
		u.Fatal(err)
	}
	u.until("the definition is established", func(ctx context.Context) (bool, error) {
		var l WebsiteList
		err := u.List(ctx, &l)
		return err == nil, err
	})
}

// TestOperator is the life of a Website.
func TestOperator(t *testing.T) {
	c := up(t)
	u := newUser(t, c.config(t))
	u.define()
	first := start(t, c.config(t))
	site := &Website{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "home"},
		Spec: WebsiteSpec{Text: "hello"}}
	if err := u.Create(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	u.ready("home", 2) // the default of the definition
	u.until("the operator's event", func(ctx context.Context) (bool, error) {
		var l eventsv1.EventList
		err := u.List(ctx, &l, client.InNamespace("default"))
		return slices.ContainsFunc(l.Items, func(e eventsv1.Event) bool {
			return e.Reason == "Made" && e.Regarding.Name == "home" && e.ReportingController == "website-operator"
		}), err
	})

	// It is scaled by the subresource, as by kubectl scale and an autoscaler.
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
	if err := u.SubResource("scale").Update(t.Context(), site, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	u.ready("home", 3)

	// The operator puts back what others take away.
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "home"}}
	if err := u.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil {
		t.Fatal(err)
	}
	old := deployment.UID
	if err := u.Delete(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	u.until("the Deployment is back", func(ctx context.Context) (bool, error) {
		err := u.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)
		return err == nil && deployment.UID != old, err
	})
	u.ready("home", 3)

	// A second copy waits for its turn, and goes on where the first one stopped.
	second := start(t, c.config(t))
	first.stop()
	u.patch("home", func(w *Website) { w.Spec.Text = "good day" })
	u.ready("home", 3)
	if texts := u.pods("home"); slices.ContainsFunc(texts, func(s string) bool { return s != "good day" }) {
		t.Errorf("pods serve %q", texts)
	}

	// carob is killed in the middle of a rollout; the operator's watches come back by themselves.
	u.patch("home", func(w *Website) { w.Spec.Text, w.Spec.Replicas = "good night", ptr.To(int32(4)) })
	c.kill(t)
	c.up(t)
	u.ready("home", 4)
	if texts := u.pods("home"); slices.ContainsFunc(texts, func(s string) bool { return s != "good night" }) {
		t.Errorf("pods serve %q after carob was killed", texts)
	}

	// What the definition forbids is refused with the field's name.
	bad := &Website{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bad"}, Spec: WebsiteSpec{
		Text: "x", Replicas: ptr.To(int32(11))}}
	if err := u.Create(t.Context(), bad); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.replicas") {
		t.Errorf("11 replicas: %v", err)
	}

	// After its deletion it is removed when the operator has removed its finalizer, and the garbage collector deletes
	// its children.
	if err := u.Delete(t.Context(), site); err != nil {
		t.Fatal(err)
	}
	u.until("everything is gone", func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		err := errors.Join(u.List(ctx, &pods, client.InNamespace("default")))
		for _, o := range []client.Object{&Website{}, &appsv1.Deployment{}, &corev1.ConfigMap{}} {
			if !apierrors.IsNotFound(u.Get(ctx, client.ObjectKeyFromObject(site), o)) {
				return false, err
			}
		}
		return err == nil && len(pods.Items) == 0, err
	})
	second.stop()
	if byes := append(slices.Clone(first.bye), second.bye...); !slices.Equal(byes, []string{"home"}) {
		t.Errorf("goodbyes: %q", byes)
	}
}
