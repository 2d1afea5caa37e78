// Package fakeapi is shared by the simulators of controllers: an API server in memory with
// versions, conflicts, and finalizers; watches that deliver events late, twice, or only with a new
// list; and a client whose responses get lost and whose process ends between any two writes. One
// random source decides everything, so a seed always runs the same. Only simulators use it; it must
// never touch a real cluster.
package fakeapi

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Invariant is the name of an invariant, with its clause.
type Invariant string

// Broken is an invariant that was broken, and how.
type Broken struct {
	Invariant Invariant
	How       string
}

func (b *Broken) Error() string { return string(b.Invariant) + ": " + b.How }

// Break ends a run; Catch returns its argument.
func Break(p Invariant, format string, args ...any) { panic(&Broken{p, fmt.Sprintf(format, args...)}) }

// Catch runs a simulation and returns the first broken invariant, nil for none.
func Catch(run func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(*Broken)
			if !ok {
				panic(r)
			}
			err = b
		}
	}()
	run()
	return nil
}

// The errors of the API, and the others that a caller gets.
var (
	ErrConflict = errors.New("a newer version is stored")
	ErrMissing  = errors.New("there is no such object")
	ErrExists   = errors.New("an object of this name exists")
	ErrRefused  = errors.New("the API could not be reached")
	ErrLost     = errors.New("the answer was lost") // the write took effect
	ErrCrash    = errors.New("the process ended")   // before the write
)

// Stale reports whether the store has a newer version than the one that a write was based on.
func Stale(err error) bool { return errors.Is(err, ErrConflict) || errors.Is(err, ErrMissing) }

// Object is an object of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// Entry is an object at a version. Gone means that it was deleted. Objects are immutable.
type Entry struct {
	Object  Object
	Version int
	Gone    bool
}

// API is the store. Its methods are the actions of users, nodes, and other controllers, which
// always succeed. Only a Client has faults.
type API struct {
	*rand.Rand
	Now       time.Time
	Faultless bool // no faults any more
	// Admit sets what the API server sets in a new object.
	Admit func(Object)
	// Charge is called before a client creates an object: an error refuses it.
	Charge func(Object) error
	// Ended reports whether an object that is being deleted and has no finalizer is removed.
	Ended func(Object) bool
	// Grace returns the grace period in seconds of a deletion, given the requested one.
	Grace func(o Object, requested int64) int64
	// Stored is called for each change; before is nil for a new object.
	Stored func(before Object, after Entry)

	objects map[types.UID]Entry
	history []Entry
	made    int
}

// New returns an empty store with faults from a seed.
func New(seed uint64, now time.Time) *API {
	source := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // reproducible
	return &API{Rand: source, Now: now, objects: map[types.UID]Entry{}, Admit: func(Object) {},
		Charge: func(Object) error { return nil },
		Ended:  func(Object) bool { return true },
		Grace:  func(_ Object, requested int64) int64 { return requested }, Stored: func(Object, Entry) {}}
}

// Writes returns the number of stored changes.
func (a *API) Writes() int { return len(a.history) }

// One of n: returns true once in n times on average, and never after the faults have ended.
func (a *API) One(n int) bool { return !a.Faultless && a.IntN(n) == 0 }

// Get returns an object by its UID, nil if it does not exist.
func (a *API) Get(uid types.UID) Object { return a.objects[uid].Object }

// Read returns an object with its version; false if it does not exist.
func (a *API) Read(uid types.UID) (Entry, bool) {
	e, ok := a.objects[uid]
	return e, ok
}

// All returns the objects of a type, oldest first.
func All[T Object](a *API) []T { return typed[T](a.objects) }

func typed[T Object](objects map[types.UID]Entry) []T {
	var out []T
	for _, uid := range slices.Sorted(maps.Keys(objects)) {
		if o, ok := objects[uid].Object.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// Create stores an object with a new UID, and with a name if it has none.
func (a *API) Create(o Object) Object {
	c := clone(o)
	a.made++
	c.SetUID(types.UID(fmt.Sprintf("uid-%05d", a.made)))
	if c.GetName() == "" {
		c.SetName(c.GetGenerateName() + strconv.Itoa(a.made))
	}
	c.SetGeneration(1)
	c.SetCreationTimestamp(metav1.NewTime(a.Now))
	a.Admit(c)
	return a.put(c)
}

// Change changes a stored object. It returns nil if the object does not exist any more.
func (a *API) Change(uid types.UID, f func(Object)) Object {
	o := a.objects[uid].Object
	if o == nil {
		return nil
	}
	c := clone(o)
	f(c)
	return a.put(c)
}

// Delete deletes an object with a grace period in seconds.
func (a *API) Delete(uid types.UID, grace int64) {
	a.Change(uid, func(o Object) {
		grace := a.Grace(o, grace)
		if o.GetDeletionTimestamp() == nil {
			o.SetDeletionTimestamp(new(metav1.NewTime(a.Now.Add(time.Duration(grace) * time.Second))))
			o.SetDeletionGracePeriodSeconds(&grace)
		} else if old := o.GetDeletionGracePeriodSeconds(); old != nil && grace < *old {
			o.SetDeletionGracePeriodSeconds(&grace)
		}
	})
}

func (a *API) put(o Object) Object {
	uid, version := o.GetUID(), len(a.history)+1
	o.SetResourceVersion(strconv.Itoa(version))
	before := a.objects[uid].Object
	e := Entry{Object: o, Version: version}
	e.Gone = o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && a.Ended(o)
	if e.Gone {
		delete(a.objects, uid)
	} else {
		a.objects[uid] = e
	}
	a.history = append(a.history, e)
	a.Stored(before, e)
	return o
}

func clone(o Object) Object {
	c, ok := o.DeepCopyObject().(Object)
	if !ok {
		panic("a copy is of another type")
	}
	return c
}
