// Package resourceclaim creates the ResourceClaims of pods from templates, and releases claims whose
// pods have ended. core/podclaims decides; the controller manager runs it. It must never allocate a
// device.
//
// Its watches of claims and templates begin with the first pod that needs a claim, or the first claim:
// a cluster without any has no cost.
//
// Contract: S9.B in docs/spec/storage-and-node.md.
package resourceclaim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/freshness"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/podclaims"
)

// Watches are what the controller reads.
type Watches struct {
	Pods              *source.Watch // run by the caller
	Claims, Templates *source.Watch // run by the controller
}

// Controller makes and releases claims. Its key is pod/NAMESPACE/NAME or claim/NAMESPACE/NAME.
type Controller struct {
	loop   *reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	in     Watches
	fresh  *freshness.Tracker
	first  *reconciler.First // something to do

	// unclear holds the keys of pods for which a claim may have been created although the request
	// failed.
	unclear reconciler.Keys

	mu    sync.Mutex
	users map[string]map[string]bool // names of the pods that refer to a claim or template, by claim/… or template/…
}

// Readers notifies the controller of the first claim; an inventory implements it.
type Readers interface{ AddReader(r inventory.Reader) }

// New returns a controller.
func New(client kubernetes.Interface, events record.EventRecorder, readers Readers, in Watches) (*Controller, error) {
	c := &Controller{client: client, events: events, in: in, first: reconciler.NewFirst(),
		users: map[string]map[string]bool{}}
	c.loop = reconciler.New("resource_claim", 4, c.reconcile)
	// a claim that no pod uses may have to be released
	readers.AddReader(inventory.Notify(c.first.Seen, resourcev1.Resource("resourceclaims")))
	var err error
	if c.fresh, err = freshness.New(c.loop.Add, in.Pods, in.Claims); err != nil {
		return nil, fmt.Errorf("resourceclaim: %w", err)
	}
	if err := in.Pods.OnChange(c.podChanged); err != nil {
		return nil, fmt.Errorf("resourceclaim: watch pods: %w", err)
	}
	err = reconciler.OnChange(in.Claims, func(o metav1.Object) {
		key := "claim/" + o.GetNamespace() + "/" + o.GetName()
		c.loop.Add(key)
		c.addUsers(key, o.GetNamespace())
		if name, _ := podclaims.Owner(o); name != "" {
			c.loop.Add("pod/" + o.GetNamespace() + "/" + name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("resourceclaim: watch claims: %w", err)
	}
	err = reconciler.OnChange(in.Templates, func(o metav1.Object) {
		c.addUsers("template/"+o.GetNamespace()+"/"+o.GetName(), o.GetNamespace())
	})
	if err != nil {
		return nil, fmt.Errorf("resourceclaim: watch templates: %w", err)
	}
	metrics.OnRead(c.measureAll)
	return c, nil
}

// Run waits until there is something to do, then watches and works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	c.first.Run(ctx, []reconciler.Watched{c.in.Claims, c.in.Templates}, nil, c.loop.Run)
}

// podChanged records the claims of a pod, and queues the keys that its change affects.
func (c *Controller) podChanged(before, after metav1.Object) {
	b, _ := before.(*corev1.Pod)
	a, _ := after.(*corev1.Pod)
	if !uses(b) && !uses(a) {
		return
	}
	c.first.Seen()
	c.mu.Lock()
	for _, key := range named(b) {
		delete(c.users[key], b.Name)
		if len(c.users[key]) == 0 {
			delete(c.users, key)
		}
	}
	for _, key := range named(a) {
		if c.users[key] == nil {
			c.users[key] = map[string]bool{}
		}
		c.users[key][a.Name] = true
	}
	c.mu.Unlock()
	if a == nil || podclaims.Done(a) {
		pod := a
		if pod == nil {
			pod = b
		}
		for _, name := range podclaims.Names(pod) {
			c.loop.Add("claim/" + pod.Namespace + "/" + name)
		}
		return
	}
	c.loop.Add("pod/" + a.Namespace + "/" + a.Name)
}

func uses(pod *corev1.Pod) bool {
	return pod != nil && (len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil)
}

// named returns the claims and templates that a pod refers to.
func named(pod *corev1.Pod) []string {
	if pod == nil {
		return nil
	}
	var keys []string
	for _, name := range podclaims.Names(pod) {
		keys = append(keys, "claim/"+pod.Namespace+"/"+name)
	}
	for i := range pod.Spec.ResourceClaims {
		if t := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName; t != nil {
			keys = append(keys, "template/"+pod.Namespace+"/"+*t)
		}
	}
	return keys
}

func (c *Controller) addUsers(key, namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.users[key] {
		c.loop.Add("pod/" + namespace + "/" + name)
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.fresh.Fresh(key) {
		return 0, nil
	}
	kind, name, _ := strings.Cut(key, "/")
	if kind == "claim" {
		return 0, c.release(ctx, key, source.Get[*resourcev1.ResourceClaim](c.in.Claims, name))
	}
	return 0, c.provide(ctx, key, source.Get[*corev1.Pod](c.in.Pods, name))
}
