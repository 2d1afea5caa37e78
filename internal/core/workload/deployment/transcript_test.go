package deployment

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/transcript"
)

// TestTranscripts runs the stories in testdata/transcripts: each command changes the world and prints
// what Decide returns. Rewrite them with -rewrite, and commit only what you understand.
//
//	set KEY=VALUE…     a user changes the deployment (world.set); then a pass
//	pass [writes=N]    a pass; carob ends after N writes
//	sets               the replica sets' controller acts, then a pass
//	ready [N]          of each set N more pods (all) become available, the controller acts, then a pass
//	settle             sets, ready and passes until nothing changes
//	broken IMAGE       pods of this image never become available
//	slow, gone         deleted pods stay for a while; they have ended
//	lose SET N         N pods of a set are no longer available
//	resize SET N       a user changes the size of a set
//	annotate SET K=V   a user changes an annotation of a set
//	fail [REASON]      sets can't be created for this reason; without: they can
//	quota SET REASON   a set has a ReplicaFailure; without a reason it has none
//	taken SAME|OTHER   the result of Taken for an existing set
//	advance DURATION   time passes, then a pass
func TestTranscripts(t *testing.T) {
	transcript.Run(t, 12, func(*testing.T) *world { return newWorld() },
		func(t *testing.T, w *world, d *datadriven.TestData) string {
			out, err := w.command(d)
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			return transcript.Lines(out)
		})
}

const all = 1 << 20

func (w *world) command(d *datadriven.TestData) ([]string, error) {
	arg := func(i int) string {
		if i < len(d.CmdArgs) {
			return d.CmdArgs[i].Key
		}
		return ""
	}
	number := func(i int) int32 {
		n, _ := strconv.ParseInt(arg(i), 10, 32)
		return int32(n)
	}
	switch d.Cmd {
	case "set":
		for _, a := range d.CmdArgs {
			if err := w.set(a.Key, strings.Join(a.Vals, ",")); err != nil {
				return nil, err
			}
		}
	case "pass":
		if d.HasArg("writes") {
			n := 0
			d.ScanArgs(&testing.T{}, "writes", &n)
			return w.pass(n), nil
		}
	case "sets":
		w.replicaSets()
	case "ready":
		n := number(0)
		if n == 0 {
			n = all
		}
		w.replicaSets()
		w.ready(n)
		w.replicaSets()
	case "settle":
		return w.settle(), nil
	case "broken":
		w.broken[arg(0)] = true
		return []string{"ok"}, nil
	case "slow":
		w.slow = true
		return []string{"ok"}, nil
	case "gone":
		clear(w.ending)
		w.replicaSets()
	case "lose":
		w.left[w.find(arg(0)).UID][1] -= number(1)
		w.replicaSets()
	case "resize":
		s := w.find(arg(0)).DeepCopy()
		s.Spec.Replicas = new(number(1))
		s.Generation++
		w.replace(s)
	case "annotate":
		s := w.find(arg(0)).DeepCopy()
		k := d.CmdArgs[1]
		s.Annotations["deployment.kubernetes.io/"+k.Key] = strings.Join(k.Vals, ",")
		w.replace(s)
	case "fail":
		w.fails = nil
		if d.Input != "" {
			w.fails = map[string]error{"create": errors.New(d.Input)}
		}
	case "quota":
		s := w.find(arg(0)).DeepCopy()
		s.Status.Conditions = nil
		if d.Input != "" {
			s.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure,
				Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: d.Input,
				LastTransitionTime: metav1.NewTime(w.now)}}
		}
		w.replace(s)
	case "taken":
		exists := w.sets[0].DeepCopy()
		if arg(0) == "OTHER" {
			exists.OwnerReferences[0].UID = "another"
		}
		d := Taken(w.d, exists)
		if d == nil {
			return []string{"ours"}, nil
		}
		return w.do(Step{Status: d}), nil
	case "advance":
		by, err := time.ParseDuration(arg(0))
		if err != nil {
			return nil, err
		}
		w.now = w.now.Add(by)
	default:
		return nil, fmt.Errorf("unknown command %s", d.Cmd)
	}
	return w.pass(all), nil
}

func (w *world) settle() (out []string) {
	for range 200 {
		pass := w.pass(all)
		writes := 0
		for _, line := range pass {
			if !strings.HasPrefix(line, "next in ") {
				out = append(out, line)
				writes++
			}
		}
		if !w.replicaSets() && !w.ready(all) && writes == 0 {
			return out
		}
	}
	return append(out, "never settles")
}

func (w *world) find(alias string) *appsv1.ReplicaSet {
	for _, s := range w.sets {
		if w.alias(s.Name) == alias {
			return s
		}
	}
	return nil
}

func (w *world) replace(s *appsv1.ReplicaSet) {
	for i := range w.sets {
		if w.sets[i].UID == s.UID {
			w.sets[i] = s
		}
	}
}
