// Package garbage is the garbage collector: it deletes objects whose owners are gone, and performs
// foreground and orphan deletions. It drives core/garbage, which decides. The controller manager
// runs it; it must never delete an object without reading the stored version of it and of its
// owners.
package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
	"carob/internal/core/garbage"
)

const (
	workers = 20
	// Before dependents are orphaned, those that were just created get this long to arrive in their
	// watch: a dependent that is missed would be collected instead.
	orphanAfter = 100 * time.Millisecond
	// A kind that is not served may be served later without notice (when an aggregated API server
	// returns).
	unknownAgain = 5 * time.Minute
)

// Collector is the garbage collector. Its key is a UID.
type Collector struct {
	*reconciler.Reconciler
	objects   metadata.Interface
	inventory *inventory.Inventory
	events    record.EventRecorder

	mu      sync.Mutex
	graph   *garbage.Graph
	unknown map[types.UID]bool // with an owner of a kind that is not served
}

// New returns a collector that reads inv and writes through objects; it records events about
// references that it cannot follow.
func New(objects metadata.Interface, inv *inventory.Inventory, events record.EventRecorder) *Collector {
	c := &Collector{objects: objects, inventory: inv, events: events, graph: garbage.NewGraph(),
		unknown: map[types.UID]bool{}}
	c.Reconciler = reconciler.New("garbage_collector_attempt_to_delete", workers, c.reconcile)
	inv.AddReader(c)
	return c
}

// Run collects until ctx is done, starting when all kinds have been listed, because before that an
// object may seem to have no dependents.
func (c *Collector) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.inventory.Synced():
		c.Reconciler.Run(ctx)
	}
}

// Changed implements inventory.Reader.
func (c *Collector) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	c.update(func(g *garbage.Graph) []types.UID { return g.Observe(garbage.New(k.GroupKind(), o)) })
}

// Gone implements inventory.Reader.
func (c *Collector) Gone(_ inventory.Kind, o *metav1.PartialObjectMetadata) {
	c.update(func(g *garbage.Graph) []types.UID { return g.Gone(o.UID) })
}

// Relisted implements inventory.Reader.
func (c *Collector) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	c.update(func(g *garbage.Graph) []types.UID {
		there := make(map[types.UID]bool, len(objects))
		var look []types.UID
		for _, o := range objects {
			there[o.UID] = true
			look = append(look, g.Observe(garbage.New(k.GroupKind(), o))...)
		}
		return append(look, g.Relisted(k.GroupKind(), there)...)
	})
}

// Kinds implements inventory.Reader: owners of a previously unknown kind may be known now.
func (c *Collector) Kinds() {
	c.mu.Lock()
	waiting := c.unknown
	c.unknown = map[types.UID]bool{}
	c.mu.Unlock()
	for uid := range waiting {
		c.Add(string(uid))
	}
}

func (c *Collector) update(change func(*garbage.Graph) []types.UID) {
	c.mu.Lock()
	look := change(c.graph)
	waits := make([]time.Duration, len(look))
	for i, uid := range look {
		if o, ok := c.graph.Object(uid); ok && o.Deleting && o.Orphan {
			waits[i] = orphanAfter
		}
	}
	c.mu.Unlock()
	for i, uid := range look {
		c.AddAfter(string(uid), waits[i])
	}
}

// known returns the graph's data of an object.
func (c *Collector) known(uid types.UID) (garbage.Object, []garbage.Object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.graph.Object(uid)
	return o, c.graph.Dependents(uid), ok
}

func (c *Collector) reconcile(ctx context.Context, key string) (time.Duration, error) {
	uid := types.UID(key)
	known, _, ok := c.known(uid)
	if !ok {
		return 0, nil
	}
	kind, ok := c.inventory.Preferred(known.GroupKind)
	if !ok {
		return 0, nil // the kind is gone, and its objects with it
	}
	stored, err := c.get(ctx, kind, known.Namespace, known.Name)
	if err != nil {
		return 0, err
	}
	if stored == nil || stored.UID != uid {
		c.update(func(g *garbage.Graph) []types.UID { return g.Gone(uid) })
		return 0, nil
	}
	in := garbage.Input{Object: garbage.New(kind.GroupKind(), stored)}
	again := time.Duration(0)
	if !in.Object.Deleting {
		if in.Owners, err = c.owners(ctx, in.Object); err != nil {
			return 0, err
		}
		c.reportMisplaced(ctx, kind, in)
		if slices.Contains(in.Owners, garbage.Unknown) {
			c.mu.Lock()
			c.unknown[uid] = true
			c.mu.Unlock()
			again = unknownAgain
		}
	}
	_, in.Dependents, _ = c.known(uid)
	err = c.act(ctx, kind, stored, garbage.Decide(in))
	if apierrors.IsConflict(err) {
		return time.Millisecond, nil // changed meanwhile: check again
	}
	return again, err
}

// owners reads the stored objects that the references of o point to.
func (c *Collector) owners(ctx context.Context, o garbage.Object) ([]garbage.OwnerState, error) {
	states := make([]garbage.OwnerState, 0, len(o.Owners))
	for _, r := range o.Owners {
		kind, ok := c.inventory.Resolve(schema.FromAPIVersionAndKind(r.APIVersion, r.Kind))
		if !ok || kind.Namespaced && o.Namespace == "" {
			states = append(states, garbage.Unknown)
			continue
		}
		namespace := o.Namespace
		if !kind.Namespaced {
			namespace = ""
		}
		stored, err := c.get(ctx, kind, namespace, r.Name)
		if err != nil {
			return nil, err
		}
		if stored == nil || stored.UID != r.UID {
			states = append(states, garbage.Absent)
			continue
		}
		owner := garbage.New(kind.GroupKind(), stored)
		c.update(func(g *garbage.Graph) []types.UID { return g.Verified(owner) })
		if owner.Waiting() {
			states = append(states, garbage.WaitsForDependents)
		} else {
			states = append(states, garbage.Present)
		}
	}
	return states, nil
}

func (c *Collector) api(kind inventory.Kind, namespace string) metadata.ResourceInterface {
	if kind.Namespaced {
		return c.objects.Resource(kind.GroupVersionResource).Namespace(namespace)
	}
	return c.objects.Resource(kind.GroupVersionResource)
}

// get returns the metadata of the stored object, nil if there is none. The name may be that of an owner reference. The
// API server does not check these, and the client puts it into a path as it is.
func (c *Collector) get(ctx context.Context, kind inventory.Kind, namespace,
	name string) (*metav1.PartialObjectMetadata, error) {
	if len(content.IsPathSegmentName(name)) > 0 {
		return nil, nil // no object has such a name
	}
	o, err := c.api(kind, namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", kind.GroupResource(), namespace, name, err)
	}
	return o, nil
}

func (c *Collector) act(ctx context.Context, kind inventory.Kind, stored *metav1.PartialObjectMetadata,
	a garbage.Action) error {
	if a.SetOwners != nil {
		changed, err := c.patch(ctx, kind, stored, map[string]any{"ownerReferences": a.SetOwners})
		if err != nil || changed == nil {
			return err
		}
		stored = changed
	}
	if a.Delete != "" {
		o := metav1.DeleteOptions{PropagationPolicy: &a.Delete,
			Preconditions: &metav1.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion}}
		err := c.api(kind, stored.Namespace).Delete(ctx, stored.Name, o)
		if err = c.confirmed(ctx, kind, stored, err); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s/%s: %w", kind.GroupResource(), stored.Namespace, stored.Name, err)
		}
	}
	if err := c.release(ctx, stored.UID, a.Release); err != nil {
		return err
	}
	if a.RemoveFinalizer != "" {
		left := slices.DeleteFunc(slices.Clone(stored.Finalizers),
			func(f string) bool { return f == a.RemoveFinalizer })
		if _, err := c.patch(ctx, kind, stored, map[string]any{"finalizers": left}); err != nil {
			return err
		}
	}
	for _, uid := range a.Look {
		c.Add(string(uid))
	}
	return nil
}

// release removes the reference to an owner from its dependents, in parallel.
func (c *Collector) release(ctx context.Context, owner types.UID, dependents []garbage.Object) error {
	errs := make([]error, len(dependents))
	slots := make(chan struct{}, workers)
	var group sync.WaitGroup
	for i, d := range dependents {
		slots <- struct{}{}
		group.Go(func() {
			errs[i] = c.releaseOne(ctx, owner, d)
			<-slots
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

const conflictsBorne = 10

func (c *Collector) releaseOne(ctx context.Context, owner types.UID, d garbage.Object) error {
	kind, ok := c.inventory.Preferred(d.GroupKind)
	if !ok {
		return nil
	}
	for try := 1; ; try++ {
		stored, err := c.get(ctx, kind, d.Namespace, d.Name)
		if err != nil || stored == nil || stored.UID != d.UID {
			return err
		}
		left := slices.DeleteFunc(slices.Clone(stored.OwnerReferences),
			func(r metav1.OwnerReference) bool { return r.UID == owner })
		if len(left) == len(stored.OwnerReferences) {
			return nil
		}
		if _, err = c.patch(ctx, kind, stored, map[string]any{"ownerReferences": left}); !apierrors.IsConflict(err) ||
			try == conflictsBorne {
			return err
		}
	}
}

// confirmed returns the error of a write to an object that was read. It is neither Conflict nor NotFound if a webhook
// refuses the write with these codes: then nothing has changed, and the write is not repeated at once.
func (c *Collector) confirmed(ctx context.Context, kind inventory.Kind, stored *metav1.PartialObjectMetadata,
	err error) error {
	live := confirm.By(func(ctx context.Context, name string,
		o metav1.GetOptions) (*metav1.PartialObjectMetadata, error) {
		return c.api(kind, stored.Namespace).Get(ctx, name, o)
	}, stored.Name)
	changed := confirm.Overtaken
	if apierrors.IsNotFound(err) {
		changed = func(ctx context.Context, _ metav1.Object, err error, live confirm.Live) error {
			return confirm.Removed(ctx, stored.UID, err, live)
		}
	}
	if confirm.Stale(err) && changed(ctx, stored, err, live) != nil {
		return fmt.Errorf("the write was refused: %v", err) //nolint:errorlint // it is none of these kinds of error
	}
	return err
}

// patch changes metadata of exactly the object that was read; it returns nil without an error if
// that object is gone.
func (c *Collector) patch(ctx context.Context, kind inventory.Kind, stored *metav1.PartialObjectMetadata,
	change map[string]any) (*metav1.PartialObjectMetadata, error) {
	change["uid"], change["resourceVersion"] = stored.UID, stored.ResourceVersion
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return nil, fmt.Errorf("encode a patch: %w", err)
	}
	o, err := c.api(kind, stored.Namespace).Patch(ctx, stored.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err = c.confirmed(ctx, kind, stored, err); apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("patch %s %s/%s: %w", kind.GroupResource(), stored.Namespace, stored.Name, err)
	}
	return o, nil
}
