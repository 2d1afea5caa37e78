package job

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"carob/internal/base/transcript"
)

// TestTranscripts runs the stories in testdata/transcripts: each command changes the world, the driver runs,
// and its actions are printed. Rewrite them with -rewrite, and commit only a diff that you understand.
//
//	job                  the spec as YAML: makes or changes the Job
//	run POD…             pods run and are ready
//	exit POD… [code=N]   pods end
//	condition POD TYPE   another writer sets a condition
//	restarts POD N       its container was started again
//	delete POD…          a user deletes pods; gone POD…: the node has ended them
//	orphan POD…          pods lose their owner
//	advance DURATION     time passes; the driver runs at the requested times
//	delete-job           the Job is being deleted
//	refuse, accept       pods can't be created; they can again
//	crash                the controller restarts
//	crash-before KIND N  the controller ends right before the Nth write of a kind after this, and starts again
//	pods                 the pods there are
//	template POD         a pod as it was created
func TestTranscripts(t *testing.T) {
	transcript.Run(t, 12, func(*testing.T) *world { return newWorld() },
		func(t *testing.T, w *world, d *datadriven.TestData) string {
			w.log = nil
			if err := w.command(d); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return transcript.Lines(w.log)
		})
}

func (w *world) command(d *datadriven.TestData) error {
	var names []string
	code := int32(0)
	for _, a := range d.CmdArgs {
		if a.Key == "code" {
			n, err := strconv.Atoi(a.Vals[0])
			if err != nil {
				return err
			}
			code = int32(n)
			continue
		}
		names = append(names, a.Key)
	}
	each := func(f func(*corev1.Pod)) error {
		for _, n := range names {
			p := w.find(n)
			if p == nil {
				return fmt.Errorf("no pod %s", n)
			}
			f(p)
		}
		return nil
	}
	var err error
	switch d.Cmd {
	case "job":
		err = w.apply(d.Input)
	case "run":
		err = each(w.run)
	case "exit":
		err = each(func(p *corev1.Pod) { w.exit(p, code) })
	case "condition":
		p := w.find(names[0])
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodConditionType(names[1]), Status: corev1.ConditionTrue})
	case "restarts":
		n, _ := strconv.Atoi(names[1])
		w.find(names[0]).Status.ContainerStatuses[0].RestartCount = int32(n)
	case "delete":
		err = each(func(p *corev1.Pod) { w.remove(p.Name) })
	case "gone":
		err = each(w.gone)
	case "orphan":
		err = each(func(p *corev1.Pod) {
			for i := range w.pods {
				if w.pods[i] == p {
					w.pods = append(w.pods[:i:i], w.pods[i+1:]...)
					return
				}
			}
		})
	case "advance":
		var by time.Duration
		if by, err = time.ParseDuration(names[0]); err != nil {
			return err
		}
		w.advance(by)
		return nil
	case "delete-job":
		w.job.DeletionTimestamp = new(metav1.NewTime(w.now))
	case "refuse", "accept":
		w.refuse = d.Cmd == "refuse"
	case "crash":
		w.backoff = Backoff{}
	case "crash-before":
		n, _ := strconv.Atoi(names[1])
		w.write = func(what string) bool {
			if what == names[0] {
				n--
			}
			return n > 0 || what != names[0]
		}
		return nil
	case "pods":
		for _, p := range w.pods {
			line := p.Name + " " + string(p.Status.Phase)
			if p.DeletionTimestamp != nil {
				line += " deleting"
			}
			if Tracked(p) {
				line += " tracked"
			}
			w.logf("%s", line)
		}
		return nil
	case "template":
		p := w.find(names[0]).DeepCopy()
		p.CreationTimestamp, p.Status = metav1.Time{}, corev1.PodStatus{}
		text, err := yaml.Marshal(p)
		w.logf("%s", strings.TrimSpace(string(text)))
		return err
	default:
		return fmt.Errorf("no command %s", d.Cmd)
	}
	if err != nil {
		return err
	}
	if !w.sync() {
		w.logf("crash")
		w.write, w.backoff = func(string) bool { return true }, Backoff{}
		w.sync()
	}
	return nil
}

func (w *world) advance(by time.Duration) {
	end := w.now.Add(by)
	for !w.next.IsZero() && !w.next.After(end) {
		w.now = w.next
		w.logf("after %v", w.now.Sub(begin))
		w.sync()
	}
	w.now = end
}

// W5.21: one step creates or deletes at most 500 pods.
func TestBurst(t *testing.T) {
	w := newWorld()
	if err := w.apply("parallelism: 1200\ncompletions: 1200"); err != nil {
		t.Fatal(err)
	}
	if n := len(w.plan(false).Create); n != 500 {
		t.Errorf("%d creations in one step", n)
	}
	w.sync()
	if len(w.pods) != 1200 {
		t.Fatalf("%d pods in the end", len(w.pods))
	}
	w.job.Spec.Suspend = new(true)
	if n := len(w.plan(false).Delete); n != 500 {
		t.Errorf("%d deletions in one step", n)
	}
}
