package vpas

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload/vpa"
	"carob/internal/sim/fakeapi"
)

// controller simulates controllers/vpa: the same order of reads, decisions and writes.
type controller struct {
	w          *world
	client     *fakeapi.Client
	vpas, pods *fakeapi.Watch
	watches    []*fakeapi.Watch

	model     *vpa.Model
	loaded    bool
	resizes   vpa.Resizes
	next      time.Time // time of its next pass
	disturbed int       // pods that the last pass changed
}

// newController starts a process: it has only the stored state.
func newController(w *world) *controller {
	c := &controller{w: w, client: w.Client(), model: vpa.NewModel(), resizes: vpa.Resizes{}}
	c.vpas, c.pods = fakeapi.NewWatch[*autoscaler](w.API), fakeapi.NewWatch[*corev1.Pod](w.API)
	c.watches = []*fakeapi.Watch{c.vpas, c.pods}
	return c
}

// scaler returns a copy of the autoscaler in the controller's view.
func (c *controller) scaler() *vpa.VerticalPodAutoscaler {
	for _, a := range fakeapi.Seen[*autoscaler](c.vpas) {
		own := a.VerticalPodAutoscaler
		return &own
	}
	return nil
}

func target(v *vpa.VerticalPodAutoscaler) vpa.Target {
	return vpa.Target{VPA: v, Selector: labels.SelectorFromSet(labels.Set{"app": "web"})}
}

// admit sizes a pod that is being created.
func (c *controller) admit(p *corev1.Pod) {
	if v := c.scaler(); v != nil && v.Mode() != vpa.ModeOff {
		vpa.Admit(p, v, vpa.Ranges{})
		c.w.sized(v, p)
	}
}

// turn makes a pass if one is due. It returns ErrCrash when the process ended.
func (c *controller) turn() error {
	c.disturbed = 0
	v := c.scaler()
	if v == nil || c.w.Now.Before(c.next) {
		return nil
	}
	c.next = c.w.Now.Add(vpa.Pass)
	now, pods, seen := c.w.Now, fakeapi.Seen[*corev1.Pod](c.pods), *v
	if c.w.sabotage.Recommended != nil {
		c.w.sabotage.Recommended(&seen)
	}
	c.model.SetTargets([]vpa.Target{target(&seen)})
	again := !c.loaded
	if again && !c.w.sabotage.Forgets {
		if c.w.One(20) {
			return nil // the API could not be reached: it waits
		}
		for _, p := range fakeapi.All[*checkpoint](c.w.API) {
			if err := c.model.Load(&p.Checkpoint, now); err != nil {
				fakeapi.Break(Restart, "%v", err)
			}
		}
	}
	c.loaded = true
	c.model.SetPods(pods, now)
	name := vpa.Name{Namespace: "n", Name: "web"}
	if again {
		s, err := c.model.Recommend(name, now)
		c.w.restarted(c.model, s, pods, err)
	}
	if !c.w.sabotage.DropSamples {
		for _, s := range c.w.samples() {
			c.model.AddSample(s, now)
		}
	}
	c.w.before = nil
	if err := c.recommend(name, v); errors.Is(err, fakeapi.ErrCrash) {
		return err
	}
	if err := c.saveCheckpoint(name); err == nil {
		s, err := c.model.Recommend(name, now)
		if err == nil {
			c.w.before = &known{now, s}
		}
	} else if errors.Is(err, fakeapi.ErrCrash) {
		return err
	}
	c.model.Collect(now)
	return c.update(v, pods)
}

func (c *controller) recommend(name vpa.Name, v *vpa.VerticalPodAutoscaler) error {
	s, err := c.model.Recommend(name, c.w.Now)
	if err != nil {
		fakeapi.Break(Ends, "%v", err)
	}
	old := v.Status
	v.Status = s
	c.w.recommended(s)
	if equality.Semantic.DeepEqual(old, s) {
		return nil
	}
	_, err = c.client.Patch(v.UID, func(o fakeapi.Object) {
		if a, ok := o.(*autoscaler); ok {
			a.Status = s
		}
	})
	return err
}

// saveCheckpoint stores the checkpoints.
func (c *controller) saveCheckpoint(name vpa.Name) error {
	var failed error
	for _, p := range c.model.Checkpoints(name, c.w.Now) {
		p.Name = vpa.CheckpointName(p.Spec, func(string) bool { return false })
		err := c.save(&p)
		if errors.Is(err, fakeapi.ErrCrash) {
			return err
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func (c *controller) save(p *vpa.Checkpoint) error {
	for _, there := range fakeapi.All[*checkpoint](c.w.API) {
		if there.Name == p.Name {
			_, err := c.client.Patch(there.UID, func(o fakeapi.Object) {
				if stored, ok := o.(*checkpoint); ok {
					stored.Status, stored.Annotations = p.Status, p.Annotations
				}
			})
			return err
		}
	}
	_, err := c.client.Create(&checkpoint{*p}, func(o fakeapi.Object) bool { _, ok := o.(*checkpoint); return ok })
	return err
}

// update changes pods.
func (c *controller) update(v *vpa.VerticalPodAutoscaler, seen []*corev1.Pod) error {
	here := map[types.UID]bool{}
	pods, judged := make([]*corev1.Pod, len(seen)), *v
	for i, p := range seen {
		here[p.UID] = true
		pods[i] = p
		if c.w.sabotage.Round != nil {
			pods[i] = p.DeepCopy()
		}
	}
	c.resizes.Keep(here)
	if c.w.sabotage.Round != nil {
		c.w.sabotage.Round(v, pods)
	}
	if !vpa.Updates(v) {
		return nil
	}
	round := vpa.NewRound(v, pods, func(vpa.Owner) (int, bool) { return c.w.replicas, true }, vpa.Ranges{}, c.resizes,
		c.w.Now)
	j := newChecker(c.w, &judged, seen)
	var evict []*corev1.Pod
	for _, p := range round.Candidates() {
		switch round.Step(p) {
		case vpa.Evict:
			evict = append(evict, p)
		case vpa.Resize:
			requested, err := c.resize(j, round, p)
			switch {
			case errors.Is(err, fakeapi.ErrCrash):
				return err
			case err != nil && !errors.Is(err, fakeapi.ErrLost):
				j.refused[p.UID] = true
				evict = append(evict, p)
			case (requested || err != nil) && !c.w.sabotage.Uncounted: // it may have been stored without a response
				round.Resized(p)
			}
		case vpa.Wait:
		}
	}
	for _, p := range evict {
		if !round.MayEvict(p) {
			continue
		}
		err := c.evict(j, p)
		if errors.Is(err, fakeapi.ErrCrash) {
			return err
		}
		if (err == nil || errors.Is(err, fakeapi.ErrLost)) && !c.w.sabotage.Uncounted {
			round.Evicted(p)
		}
	}
	return nil
}

var errInvalid = errors.New("the resize is not possible")

func (c *controller) resize(j *checker, round *vpa.Round, p *corev1.Pod) (requested bool, err error) {
	patch, err := round.Patch(p)
	if err != nil || patch == nil {
		return false, err
	}
	if c.w.One(15) {
		return false, errInvalid
	}
	wanted := sizes(round, p)
	c.client.Done = func(fakeapi.Entry, bool) {
		c.disturbed++
		j.resized(p)
	}
	_, err = c.client.Patch(p.UID, func(o fakeapi.Object) {
		if stored, ok := o.(*corev1.Pod); ok {
			stored.Spec.Containers[0].Resources.Requests = wanted
			c.w.accepted(stored)
		}
	})
	c.client.Done = func(fakeapi.Entry, bool) {}
	return err == nil, err
}

func (c *controller) evict(j *checker, p *corev1.Pod) error {
	if !c.w.sabotage.Deletes && !c.w.evictable(p.UID) {
		return errBudget
	}
	healthy := c.w.healthy(p.UID)
	c.client.Done = func(fakeapi.Entry, bool) {
		c.disturbed++
		j.evicted(p, healthy)
	}
	_, err := c.client.Delete(p.UID, 30)
	c.client.Done = func(fakeapi.Entry, bool) {}
	return err
}
