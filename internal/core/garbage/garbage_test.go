package garbage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var things = schema.GroupKind{Kind: "Thing"}

func ref(uid string, block bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Thing", Name: uid, UID: types.UID(uid),
		BlockOwnerDeletion: new(block)}
}

func thing(uid string, owners ...metav1.OwnerReference) Object {
	return Object{GroupKind: things, Namespace: "ns", Name: uid, UID: types.UID(uid), Owners: owners}
}

// cluster is a small API server with a watch whose delay the test controls, and a driver of the
// package that works like the controller.
type cluster struct {
	stored map[types.UID]*Object
	events []func(g *Graph) []types.UID // not delivered yet, oldest first
	graph  *Graph
	queue  []types.UID
	// deleted records how deletions were requested, for the invariants.
	byUser, byUs map[types.UID]bool
	log          []string
}

func newCluster() *cluster {
	return &cluster{stored: map[types.UID]*Object{}, graph: NewGraph(), byUser: map[types.UID]bool{},
		byUs: map[types.UID]bool{}}
}

func (c *cluster) logf(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *cluster) put(o Object) {
	o.Owners = slices.Clone(o.Owners)
	c.stored[o.UID] = &o
	c.events = append(c.events, func(g *Graph) []types.UID { return g.Observe(o) })
}

// settle stores a changed object, or removes it if nothing blocks its deletion.
func (c *cluster) settle(o Object) {
	if o.Deleting && !o.Orphan && !o.Foreground {
		c.logf("gone %s", o.UID)
		delete(c.stored, o.UID)
		c.events = append(c.events, func(g *Graph) []types.UID { return g.Gone(o.UID) })
		return
	}
	c.put(o)
}

func (c *cluster) delete(uid types.UID, policy metav1.DeletionPropagation) {
	o := c.stored[uid]
	if o == nil {
		return
	}
	n := *o
	n.Deleting = true
	switch policy {
	case metav1.DeletePropagationOrphan:
		n.Orphan, n.Foreground = true, false
	case metav1.DeletePropagationForeground:
		n.Orphan, n.Foreground = false, true
	default:
		n.Orphan, n.Foreground = false, false
	}
	c.logf("delete %s %s", uid, policy)
	c.settle(n)
}

// deliver delivers the oldest event.
func (c *cluster) deliver() bool {
	if len(c.events) == 0 {
		return false
	}
	e := c.events[0]
	c.events = c.events[1:]
	c.queue = append(c.queue, e(c.graph)...)
	return true
}

// work checks the next object in the queue.
func (c *cluster) work() bool {
	if len(c.queue) == 0 {
		return false
	}
	uid := c.queue[0]
	c.queue = c.queue[1:]
	stored := c.stored[uid]
	if stored == nil {
		c.queue = append(c.queue, c.graph.Gone(uid)...)
		return true
	}
	in := Input{Object: *stored, Dependents: c.graph.Dependents(uid)}
	for _, r := range stored.Owners {
		owner := c.stored[r.UID]
		switch {
		case owner == nil || owner.Name != r.Name:
			in.Owners = append(in.Owners, Absent)
		case owner.Waiting():
			in.Owners = append(in.Owners, WaitsForDependents)
		default:
			in.Owners = append(in.Owners, Present)
			c.queue = append(c.queue, c.graph.Verified(*owner)...)
		}
	}
	a := Decide(in)
	if a.SetOwners != nil {
		o := *c.stored[uid]
		o.Owners = a.SetOwners
		c.logf("owners of %s: %d", uid, len(a.SetOwners))
		c.put(o)
	}
	if a.Delete != "" {
		c.byUs[uid] = true
		c.delete(uid, a.Delete)
	}
	for _, d := range a.Release {
		if o := c.stored[d.UID]; o != nil {
			n := *o
			n.Owners = slices.DeleteFunc(slices.Clone(n.Owners),
				func(r metav1.OwnerReference) bool { return r.UID == uid })
			c.logf("release %s from %s", d.UID, uid)
			c.put(n)
		}
	}
	if a.RemoveFinalizer != "" {
		n := *c.stored[uid]
		n.Orphan = n.Orphan && a.RemoveFinalizer != metav1.FinalizerOrphanDependents
		n.Foreground = n.Foreground && a.RemoveFinalizer != metav1.FinalizerDeleteDependents
		c.settle(n)
	}
	c.queue = append(c.queue, a.Look...)
	return true
}

func (c *cluster) rest(t interface{ Fatalf(string, ...any) }) {
	for i := 0; c.deliver() || c.work(); i++ {
		if i > 10000 {
			t.Fatalf("never comes to rest:\n%s", strings.Join(c.log[:50], "\n"))
		}
	}
}

func (c *cluster) left() string {
	var out []string
	for uid := range c.stored {
		out = append(out, string(uid))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestDeletionScenarios(t *testing.T) {
	for _, s := range []struct {
		name, left string
		deliver    func(c *cluster)
	}{
		{"background takes the tree", "", func(c *cluster) {
			c.put(thing("a"))
			c.put(thing("b", ref("a", true)))
			c.put(thing("c", ref("b", true)))
			c.delete("a", metav1.DeletePropagationBackground)
		}},
		{"orphans stay", "b", func(c *cluster) {
			c.put(thing("a"))
			c.put(thing("b", ref("a", true)))
			c.delete("a", metav1.DeletePropagationOrphan)
		}},
		{"foreground takes the tree", "", func(c *cluster) {
			c.put(thing("a"))
			c.put(thing("b", ref("a", true)))
			c.put(thing("c", ref("b", true)))
			c.put(thing("d", ref("a", false)))
			c.delete("a", metav1.DeletePropagationForeground)
		}},
		{"one valid owner is enough", "b d", func(c *cluster) {
			c.put(thing("a"))
			c.put(thing("b"))
			c.put(thing("d", ref("a", true), ref("b", false)))
			c.delete("a", metav1.DeletePropagationForeground)
		}},
		{"an owner that never was", "", func(c *cluster) { c.put(thing("a", ref("ghost", false))) }},
		{"a reference with the wrong name", "a", func(c *cluster) {
			c.put(thing("a"))
			r := ref("a", false)
			r.Name = "other"
			c.put(thing("b", r))
		}},
		{"a circle is not a reason to go", "a b c", func(c *cluster) {
			c.put(thing("a", ref("c", true)))
			c.put(thing("b", ref("a", true)))
			c.put(thing("c", ref("b", true)))
		}},
		{"its own owner goes in the foreground", "", func(c *cluster) {
			c.put(thing("a", ref("a", true)))
			c.delete("a", metav1.DeletePropagationForeground)
		}},
		{"a circle goes in the foreground", "", func(c *cluster) {
			c.put(thing("a", ref("c", true)))
			c.put(thing("b", ref("a", true)))
			c.put(thing("c", ref("b", true)))
			c.delete("a", metav1.DeletePropagationForeground)
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			c := newCluster()
			s.deliver(c)
			c.rest(t)
			if c.left() != s.left {
				t.Errorf("left: %q, want %q\n%s", c.left(), s.left, strings.Join(c.log, "\n"))
			}
			if len(c.stored) == 0 && c.graph.Len() != 0 {
				t.Errorf("the graph remembers %d objects of none", c.graph.Len())
			}
		})
	}
}

// A list from before an object was stored must not cause the deletion of its dependents.
func TestStaleRelist(t *testing.T) {
	c := newCluster()
	c.put(thing("a"))
	c.put(thing("b", ref("a", false)))
	c.rest(t)
	c.queue = c.graph.Relisted(things, map[types.UID]bool{"b": true})
	if len(c.queue) == 0 {
		t.Fatal("the dependents of a missing object are not checked")
	}
	c.rest(t)
	if c.left() != "a b" {
		t.Fatalf("left: %q", c.left())
	}
	c.delete("a", metav1.DeletePropagationBackground)
	c.rest(t)
	if c.left() != "" {
		t.Errorf("left: %q", c.left())
	}
}

// An owner that was read just before its deletion must not be added to the graph again.
func TestVerifiedAfterDeletion(t *testing.T) {
	g := NewGraph()
	g.Observe(thing("b", ref("a", false)))
	g.Gone("a")
	g.Verified(thing("a"))
	if _, ok := g.Object("a"); ok {
		t.Error("a is back")
	}
}

// Whatever users do and however late the watch is, the final state is consistent: no object whose
// owners are all gone, no object that waits for ever, no deleted object that had a remaining owner.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster()
		names := []string{"a", "b", "c", "d", "e", "f"}
		made := map[string]int{}
		steps := rapid.IntRange(1, 40).Draw(t, "steps")
		for range steps {
			switch rapid.SampledFrom([]string{"create", "create", "delete", "deliver", "deliver", "work", "work",
				"relist"}).Draw(t, "step") {
			case "create":
				name := rapid.SampledFrom(names).Draw(t, "name")
				made[name]++
				uid := fmt.Sprint(name, made[name])
				var owners []metav1.OwnerReference
				for _, o := range names {
					if made[o] > 0 && o != name && rapid.IntRange(0, 2).Draw(t, "owner") == 0 {
						owners = append(owners, ref(fmt.Sprint(o, made[o]), rapid.Bool().Draw(t, "block")))
					}
				}
				c.logf("create %s of %d", uid, len(owners))
				c.put(thing(uid, owners...))
			case "delete":
				uid := types.UID(fmt.Sprint(rapid.SampledFrom(names).Draw(t, "victim"), 1))
				c.byUser[uid] = true
				c.delete(uid,
					rapid.SampledFrom([]metav1.DeletionPropagation{metav1.DeletePropagationBackground,
						metav1.DeletePropagationForeground}).Draw(t, "policy"))
			case "deliver":
				c.deliver()
			case "work":
				c.work()
			case "relist":
				there := map[types.UID]bool{}
				for uid := range c.stored {
					there[uid] = true
				}
				c.queue = append(c.queue, c.graph.Relisted(things, there)...)
			}
		}
		c.rest(t)
		for uid, o := range c.stored {
			if o.Deleting {
				t.Fatalf("%s waits for ever:\n%s", uid, strings.Join(c.log, "\n"))
			}
			if len(o.Owners) == 0 {
				continue
			}
			if !slices.ContainsFunc(o.Owners, func(r metav1.OwnerReference) bool { return c.stored[r.UID] != nil }) {
				t.Fatalf("%s has lost all its owners:\n%s", uid, strings.Join(c.log, "\n"))
			}
		}
		for uid := range c.byUs {
			if o := c.stored[uid]; o != nil {
				t.Fatalf("%s was deleted and is there:\n%s", uid, strings.Join(c.log, "\n"))
			}
		}
		if len(c.stored) == 0 && c.graph.Len() != 0 {
			t.Fatalf("the graph remembers %d objects of none", c.graph.Len())
		}
	})
}

// An object with an existing owner that is not in deletion is never deleted.
func TestObjectWithOwnerIsNotDeleted(t *testing.T) {
	states := []OwnerState{Unknown, Present, Absent, WaitsForDependents}
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Object: thing("x")}
		for i := range rapid.IntRange(0, 4).Draw(t, "owners") {
			in.Object.Owners = append(in.Object.Owners, ref(fmt.Sprint("o", i), rapid.Bool().Draw(t, "block")))
			in.Owners = append(in.Owners, rapid.SampledFrom(states).Draw(t, "state"))
		}
		if rapid.Bool().Draw(t, "dependent") {
			d := thing("d", ref("x", true))
			d.Deleting, d.Foreground = true, rapid.Bool().Draw(t, "waiting")
			in.Dependents = append(in.Dependents, d)
		}
		a := Decide(in)
		stays := len(in.Owners) == 0 || slices.Contains(in.Owners, Present) || slices.Contains(in.Owners, Unknown)
		if stays != (a.Delete == "") {
			t.Fatalf("owners %v: %+v", in.Owners, a)
		}
		if slices.Contains(in.Owners, Unknown) && (a.SetOwners != nil || a.Delete != "") {
			t.Fatalf("acted on an object that it has not observed: %+v", a)
		}
	})
}
