package deployment

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"carob/internal/core/workload"
)

// historyRoom is the maximum length of the list of former revisions (W2.6).
const historyRoom = 2000

// controllerAnnotation reports whether an annotation belongs to the controller or to kubectl apply, and
// is not copied in either direction (W2.11).
func controllerAnnotation(annotation string) bool {
	switch annotation {
	case corev1.LastAppliedConfigAnnotation, Revision, RevisionHistory, DesiredReplicas, MaxReplicas,
		appsv1.DeprecatedRollbackTo:
		return true
	}
	return false
}

// revision returns the number of a set; ok is false when its annotation is not a number.
func revision(s *appsv1.ReplicaSet) (n int64, ok bool) {
	text := s.Annotations[Revision]
	if text == "" {
		return 0, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// next returns the revision of a set that is made now (W2.31).
func (p *pass) next() int64 {
	most := int64(0)
	for _, s := range p.old {
		if n, ok := revision(s); ok {
			most = max(most, n)
		}
	}
	return most + 1
}

// syncNew brings the new set's annotations up to date. If they are up to date, the deployment gets
// its revision, and a condition if it has none (W2.30).
func (p *pass) syncNew() {
	if p.now == nil {
		return
	}
	annotations := maps.Clone(p.now.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	p.annotate(annotations)
	if !maps.Equal(annotations, p.now.Annotations) || p.now.Spec.MinReadySeconds != p.d.Spec.MinReadySeconds {
		s := p.edit(p.now)
		s.Annotations, s.Spec.MinReadySeconds = annotations, p.d.Spec.MinReadySeconds
		return
	}
	p.setRevision(annotations[Revision])
	if hasDeadline(p.d) && p.condition(appsv1.DeploymentProgressing) == nil {
		p.set(appsv1.DeploymentProgressing, corev1.ConditionTrue, "FoundNewReplicaSet",
			fmt.Sprintf("Found new replica set %q", p.now.Name))
	}
}

func (p *pass) setRevision(n string) {
	if p.d.Annotations == nil {
		p.d.Annotations = map[string]string{}
	}
	p.d.Annotations[Revision] = n
}

// annotate sets the annotations of the new set: those of the deployment, and its revision, which is
// above all others; the previous revision is added to the history (W2.6, W2.11).
func (p *pass) annotate(a map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(p.d.Annotations)) {
		if !controllerAnnotation(k) {
			a[k] = p.d.Annotations[k]
		}
	}
	before, had := a[Revision]
	n := int64(0)
	if before != "" {
		var err error
		if n, err = strconv.ParseInt(before, 10, 64); err != nil {
			return
		}
	}
	next := p.next()
	if n >= next {
		return
	}
	a[Revision] = strconv.FormatInt(next, 10)
	if had {
		a[RevisionHistory] = addRevision(a[RevisionHistory], before)
	}
}

// addRevision adds a revision to a list; the oldest ones are removed when it gets too long.
func addRevision(list, n string) string {
	if list == "" {
		return n
	}
	all := append(strings.Split(list, ","), n)
	for len(all) > 1 && len(strings.Join(all, ",")) > historyRoom {
		all = all[1:]
	}
	return strings.Join(all, ",")
}

// create creates the new set (W2.32), with as many replicas as the limits allow.
func (p *pass) create() {
	d := p.d
	hash := workload.TemplateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := d.Spec.Template.DeepCopy()
	template.Labels = with(template.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, hash)
	p.now = &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: setName(d.Name, hash), Namespace: d.Namespace, Labels: template.Labels,
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{owner(d).Reference()},
		},
		Spec: appsv1.ReplicaSetSpec{MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: *template,
			Replicas: new(int32)},
	}
	p.created = true
	p.annotate(p.now.Annotations)
	size := p.size()
	if d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		size = p.room()
	}
	p.now.Spec.Replicas = &size
	p.now.Annotations[DesiredReplicas], p.now.Annotations[MaxReplicas] = number(p.size()), number(p.size()+p.surge())
	p.setRevision(p.now.Annotations[Revision])
	if hasDeadline(d) {
		p.set(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetCreated",
			fmt.Sprintf("Created new replica set %q", p.now.Name))
	}
}

func with(labels map[string]string, hash string) map[string]string {
	c := maps.Clone(labels)
	if c == nil {
		c = map[string]string{}
	}
	c[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return c
}

// setName returns the name of a deployment's set (W2.4).
func setName(deployment, hash string) string {
	if most := validation.DNS1123SubdomainMaxLength - 1 - len(hash); len(deployment) > most {
		deployment = deployment[:most]
	}
	return deployment + "-" + hash
}

// Found reports whether the next pass finds a set that was created for the deployment. If not, it creates another one.
func Found(d *appsv1.Deployment, made *appsv1.ReplicaSet) bool {
	s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return err == nil && s.Matches(labels.Set(made.Labels)) &&
		workload.SameTemplate(&made.Spec.Template, &d.Spec.Template)
}

// Taken handles a set to be created that exists already (W2.33): it is the deployment's own, which
// the watch will show, or another one; then the deployment's status counts a collision, so that the
// next pass uses another name.
func Taken(d *appsv1.Deployment, exists *appsv1.ReplicaSet) (collision *appsv1.Deployment) {
	if owner(d).Owns(exists) && workload.SameTemplate(&exists.Spec.Template, &d.Spec.Template) {
		return nil
	}
	c := *d
	c.Status = *d.Status.DeepCopy()
	n := int32(1)
	if d.Status.CollisionCount != nil {
		n += *d.Status.CollisionCount
	}
	c.Status.CollisionCount = &n
	return &c
}

// NotCreated returns the event and, if it changes, the status for a set that cannot be created
// (W2.35).
func NotCreated(in Input, set string, failure error) (Event, *appsv1.Deployment) {
	p := newPass(in)
	e := Event{corev1.EventTypeWarning, "ReplicaSetCreateError",
		fmt.Sprintf("Failed to create new replica set %q: %v", set, failure)}
	if hasDeadline(p.d) {
		p.set(appsv1.DeploymentProgressing, corev1.ConditionFalse, e.Reason, e.Message)
	}
	for _, s := range p.end().Steps {
		return e, s.Status
	}
	return e, nil
}

// rollbackTo returns the revision in the annotation that requests a rollback (W2.9).
func rollbackTo(d *appsv1.Deployment) (n int64, requested bool) {
	text := d.Annotations[appsv1.DeprecatedRollbackTo]
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// rollback gives the deployment the template of a revision (W2.110).
func (p *pass) rollback(n int64) {
	if n == 0 {
		n = p.lastRevision()
	}
	d := *p.in.Deployment
	d.Annotations = maps.Clone(d.Annotations)
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	step := Step{Rollback: &d}
	p.d = p.in.Deployment // the next pass updates its status
	switch to := p.ofRevision(n); {
	case n == 0:
		p.warn("DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
	case to == nil:
		p.warn("DeploymentRollbackRevisionNotFound",
			"Unable to find the revision to rollback to.")
	case workload.SameTemplate(&to.Spec.Template, &d.Spec.Template):
		p.warn("DeploymentRollbackTemplateUnchanged",
			fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name))
	default:
		d.Spec.Template = *to.Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		maps.DeleteFunc(d.Annotations, func(k, _ string) bool { return !controllerAnnotation(k) })
		for _, k := range slices.Sorted(maps.Keys(to.Annotations)) {
			if !controllerAnnotation(k) {
				d.Annotations[k] = to.Annotations[k]
			}
		}
		step.Event = Event{corev1.EventTypeNormal, "DeploymentRollback",
			fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, n)}
	}
	p.plan.Steps = append(p.plan.Steps, step)
}

// lastRevision returns the revision before the present one; 0 when there is none. A template that
// has no set yet is not a revision and never becomes one.
func (p *pass) lastRevision() int64 {
	first, second := int64(0), int64(0)
	if p.now == nil {
		first = math.MaxInt64
	}
	for _, s := range p.all() {
		n, ok := revision(s)
		switch {
		case !ok:
		case n >= first:
			first, second = n, first
		case n > second:
			second = n
		}
	}
	return second
}

func (p *pass) ofRevision(n int64) *appsv1.ReplicaSet {
	for _, s := range p.all() {
		if v, ok := revision(s); ok && v == n {
			return s
		}
	}
	return nil
}

// cleanUp deletes old sets without pods beyond the limit of history (W2.100).
func (p *pass) cleanUp() {
	limit := p.d.Spec.RevisionHistoryLimit
	if limit == nil || *limit == maxInt32 {
		return
	}
	var alive []*appsv1.ReplicaSet
	for _, s := range p.old {
		if s.DeletionTimestamp == nil {
			alive = append(alive, s)
		}
	}
	slices.SortStableFunc(alive, func(a, b *appsv1.ReplicaSet) int {
		ra, okA := revision(a)
		rb, okB := revision(b)
		if !okA || !okB || ra == rb {
			return byAge(a, b)
		}
		if ra < rb {
			return -1
		}
		return 1
	})
	for i := range max(0, len(alive)-int(*limit)) {
		if s := alive[i]; s.Status.Replicas == 0 && workload.Replicas(s) == 0 &&
			s.Generation <= s.Status.ObservedGeneration &&
			p.origin[s.UID] == nil {
			p.plan.Steps = append(p.plan.Steps, Step{Delete: s})
		}
	}
}
