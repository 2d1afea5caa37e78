package deployment

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// world is a deployment, its replica sets and their controller.
type world struct {
	d      *appsv1.Deployment
	sets   []*appsv1.ReplicaSet    // in the order in which they were made
	broken map[string]bool         // images whose pods don't get ready
	ending map[types.UID]int       // pods of a set that are being deleted
	left   map[types.UID]*[2]int32 // pods of a set, and how many of them are available, at present
	slow   bool                    // deleted pods stay for a while
	now    time.Time
	made   int
	fails  map[string]error // by operation: "create"
}

func newWorld() *world {
	w := &world{now: noon, broken: map[string]bool{}, ending: map[types.UID]int{}, left: map[types.UID]*[2]int32{}}
	w.d = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(3)), RevisionHistoryLimit: new(int32(10)), ProgressDeadlineSeconds: new(int32(600)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge: new(intstr.FromString("25%")), MaxUnavailable: new(intstr.FromString("25%"))}},
		},
	}
	w.d.Spec.Template.Labels = map[string]string{"app": "web"}
	w.d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "v1"}}
	return w
}

// set changes the deployment like a user.
func (w *world) set(key, value string) error {
	spec := &w.d.Spec
	n, _ := strconv.ParseInt(value, 10, 32)
	number := int32(n)
	switch key {
	case "size":
		spec.Replicas = &number
	case "image":
		spec.Template.Spec.Containers[0].Image = value
	case "surge":
		spec.Strategy.RollingUpdate.MaxSurge = new(intstr.Parse(value))
	case "unavailable":
		spec.Strategy.RollingUpdate.MaxUnavailable = new(intstr.Parse(value))
	case "strategy":
		spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.DeploymentStrategyType(value)}
	case "paused":
		spec.Paused = value == "true"
	case "history":
		spec.RevisionHistoryLimit = &number
	case "deadline":
		spec.ProgressDeadlineSeconds = &number
		if value == "none" {
			spec.ProgressDeadlineSeconds = nil
		}
	case "min-ready":
		spec.MinReadySeconds = number
	case "rollback":
		w.annotate(appsv1.DeprecatedRollbackTo, value)
	case "cause":
		w.annotate("kubernetes.io/change-cause", value)
	case "selector":
		spec.Selector = &metav1.LabelSelector{}
	case "deleted":
		w.d.DeletionTimestamp = new(metav1.NewTime(w.now))
	default:
		return fmt.Errorf("unknown %s", key)
	}
	w.d.Generation++
	return nil
}

func (w *world) annotate(key, value string) {
	w.d.Annotations = maps.Clone(w.d.Annotations)
	if w.d.Annotations == nil {
		w.d.Annotations = map[string]string{}
	}
	w.d.Annotations[key] = value
}

func (w *world) input() Input {
	return Input{Deployment: w.d.DeepCopy(), Sets: slices.Clone(w.sets), Now: w.now, Running: func(uid types.UID) bool {
		return w.left[uid] != nil && w.left[uid][0] > 0 || w.ending[uid] > 0
	}}
}

// alias names sets by the order in which they were made.
func (w *world) alias(text string) string {
	for i, s := range w.sets {
		text = strings.ReplaceAll(text, s.Name, fmt.Sprintf("web-%d", i+1))
	}
	return text
}

// pass decides, carries out the decision, and returns it as text. It stops after the given number of writes, as
// if carob ended then.
func (w *world) pass(writes int) []string {
	plan := Decide(w.input())
	var out []string
	for _, e := range plan.Events {
		out = append(out, "event "+e.Type+" "+e.Reason+": "+e.Message)
	}
	for i, step := range plan.Steps {
		if i == writes {
			out = append(out, "killed")
			break
		}
		out = append(out, w.do(step)...)
		if step.Create != nil && w.fails["create"] != nil {
			return out
		}
	}
	if !plan.Next.IsZero() {
		out = append(out, "next in "+plan.Next.Sub(w.now).String())
	}
	for i := range out {
		out[i] = w.alias(out[i])
	}
	return out
}

func (w *world) do(step Step) (out []string) {
	switch {
	case step.Create != nil:
		if err := w.fails["create"]; err != nil {
			e, d := NotCreated(w.input(), step.Create.Name, err)
			out = append(out, "create fails", "event "+e.Type+" "+e.Reason)
			if d != nil {
				out = append(out, w.do(Step{Status: d})...)
			}
			return out
		}
		s := step.Create.DeepCopy()
		w.made++
		s.UID, s.Generation = types.UID(fmt.Sprintf("rs%d", w.made)), 1
		s.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(w.made) * time.Second))
		w.sets = append(w.sets, s)
		w.left[s.UID] = &[2]int32{}
		out = append(out, "create "+w.text(s))
	case step.Update != nil:
		i := slices.IndexFunc(w.sets, func(s *appsv1.ReplicaSet) bool { return s.UID == step.Update.UID })
		s := step.Update.DeepCopy()
		if *s.Spec.Replicas != *w.sets[i].Spec.Replicas || s.Spec.MinReadySeconds != w.sets[i].Spec.MinReadySeconds {
			s.Generation++
		}
		w.sets[i] = s
		out = append(out, "update "+w.text(s))
	case step.Delete != nil:
		out = append(out, "delete "+w.alias(step.Delete.Name))
		w.sets = slices.DeleteFunc(slices.Clone(w.sets),
			func(s *appsv1.ReplicaSet) bool { return s.UID == step.Delete.UID })
	case step.Rollback != nil:
		w.d = step.Rollback.DeepCopy()
		w.d.Generation++
		out = append(out, "rollback to image "+w.d.Spec.Template.Spec.Containers[0].Image+annotations(w.d.Annotations))
	case step.Status != nil:
		w.d.Status, w.d.Annotations = *step.Status.Status.DeepCopy(), maps.Clone(step.Status.Annotations)
		out = append(out, "status "+w.statusText())
	}
	if step.Event.Reason != "" {
		out = append(out, "event "+step.Event.Type+" "+step.Event.Reason+": "+step.Event.Message)
	}
	return out
}

func annotations(a map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(a)) {
		out = append(out, k[strings.IndexByte(k, '/')+1:]+"="+a[k])
	}
	return " [" + strings.Join(out, " ") + "]"
}

func (w *world) text(s *appsv1.ReplicaSet) string {
	return fmt.Sprintf("%s image %s size %d%s", w.alias(s.Name), s.Spec.Template.Spec.Containers[0].Image,
		*s.Spec.Replicas, annotations(s.Annotations))
}

func (w *world) statusText() string {
	s := w.d.Status
	text := fmt.Sprintf("replicas %d updated %d ready %d available %d unavailable %d", s.Replicas, s.UpdatedReplicas,
		s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas)
	if s.TerminatingReplicas != nil {
		text += fmt.Sprintf(" terminating %d", *s.TerminatingReplicas)
	}
	if s.CollisionCount != nil {
		text += fmt.Sprintf(" collisions %d", *s.CollisionCount)
	}
	text += annotations(w.d.Annotations)
	for _, c := range s.Conditions {
		text += fmt.Sprintf("\n  %s=%s %s: %s (since %s, updated %s)", c.Type, c.Status, c.Reason, c.Message,
			c.LastTransitionTime.Sub(noon), c.LastUpdateTime.Sub(noon))
	}
	return text
}

// replicaSets acts like the controller of replica sets: it creates and deletes pods, and updates the
// status.
func (w *world) replicaSets() bool {
	changed := false
	for i, s := range w.sets {
		pods := w.left[s.UID]
		if n := *s.Spec.Replicas; pods[0] > n {
			if w.slow {
				w.ending[s.UID] += int(pods[0] - n)
			}
			// Unavailable pods are deleted first (W0.51).
			pods[1] = min(pods[1], n)
			pods[0] = n
		} else {
			pods[0] = n
		}
		next := s.Status
		next.Replicas, next.ReadyReplicas, next.AvailableReplicas, next.ObservedGeneration = pods[0], pods[1], pods[1],
			s.Generation
		next.TerminatingReplicas = new(int32(w.ending[s.UID]))
		if next.Replicas != s.Status.Replicas || next.AvailableReplicas != s.Status.AvailableReplicas ||
			next.ObservedGeneration != s.Status.ObservedGeneration ||
			s.Status.TerminatingReplicas == nil || *next.TerminatingReplicas != *s.Status.TerminatingReplicas {
			c := s.DeepCopy()
			c.Status = next
			w.sets[i] = c
			changed = true
		}
	}
	return changed
}

// ready lets pods become available, at most the given number per set.
func (w *world) ready(most int32) bool {
	changed := false
	for _, s := range w.sets {
		pods := w.left[s.UID]
		if w.broken[s.Spec.Template.Spec.Containers[0].Image] || pods[1] >= pods[0] {
			continue
		}
		pods[1] = min(pods[0], pods[1]+most)
		changed = true
	}
	return changed
}
