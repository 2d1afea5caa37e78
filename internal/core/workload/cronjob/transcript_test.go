package cronjob

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"carob/internal/base/transcript"
)

// TestTranscripts runs the stories in testdata/transcripts, which begin at 12:00:20.
// Rewrite them with -rewrite, and commit only a diff that you understand.
//
//	cronjob             the spec as YAML: makes or changes the CronJob
//	advance DURATION    time passes; the driver runs at the requested times
//	sleep DURATION      time passes while carob is down; then the driver runs
//	complete JOB…, fail JOB…, vanish JOB…
//	stranger JOB        a user creates a Job that belongs to the CronJob; other NAME: one that does not
//	refuse, accept      Jobs can't be created; they can again
//	crash-before KIND N [complete=JOB]
//	                    carob ends right before the Nth write of a kind after this, a Job completes, it starts again
//	delete              the CronJob is being deleted
//	job JOB             a Job as it was made
func TestTranscripts(t *testing.T) {
	transcript.Run(t, 8, func(*testing.T) *world { return newWorld() },
		func(t *testing.T, w *world, d *datadriven.TestData) string {
			w.log = nil
			if err := w.command(d); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return transcript.Lines(w.log)
		})
}

func (w *world) command(d *datadriven.TestData) error {
	each := func(f func(*batchv1.Job)) error {
		for _, a := range d.CmdArgs {
			found := false
			for _, j := range w.jobs {
				if j.Name == a.Key {
					f(j)
					found = true
					break
				}
			}
			if !found {
				return fmt.Errorf("no job %s", a.Key)
			}
		}
		return nil
	}
	var err error
	switch d.Cmd {
	case "cronjob":
		err = w.apply(d.Input)
	case "advance", "sleep":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			return err
		}
		if d.Cmd == "advance" {
			w.advance(by)
			return nil
		}
		w.now = w.now.Add(by)
	case "complete":
		err = each(func(j *batchv1.Job) { w.finish(j, batchv1.JobComplete) })
	case "fail":
		err = each(func(j *batchv1.Job) { w.finish(j, batchv1.JobFailed) })
	case "vanish":
		err = each(func(j *batchv1.Job) { w.remove(j.UID) })
	case "stranger":
		w.made++
		j := &batchv1.Job{}
		j.Name, j.Namespace, j.UID = d.CmdArgs[0].Key, "ns", "stranger"
		w.jobs = append(w.jobs, j)
	case "other":
		w.others[d.CmdArgs[0].Key] = true
	case "refuse", "accept":
		w.refuse = d.Cmd == "refuse"
	case "crash-before":
		n, _ := strconv.Atoi(d.CmdArgs[1].Key)
		kind := d.CmdArgs[0].Key
		ends := ""
		if len(d.CmdArgs) > 2 {
			ends = d.CmdArgs[2].Vals[0]
		}
		w.down = func() {
			for _, j := range w.jobs {
				if j.Name == ends {
					w.finish(j, batchv1.JobComplete)
				}
			}
		}
		w.write = func(what string) bool {
			if what == kind {
				n--
			}
			if n > 0 || what != kind {
				return true
			}
			w.write = func(string) bool { return true }
			return false
		}
		return nil
	case "delete":
		w.cj.DeletionTimestamp = new(metav1.NewTime(w.now))
	case "job":
		return each(func(j *batchv1.Job) {
			j = j.DeepCopy()
			j.CreationTimestamp, j.Status = metav1.Time{}, batchv1.JobStatus{}
			text, _ := yaml.Marshal(j)
			w.logf("%s", strings.TrimSpace(string(text)))
		})
	default:
		return fmt.Errorf("no command %s", d.Cmd)
	}
	if err == nil && !w.sync() {
		w.logf("crash")
		w.down()
		w.sync()
	}
	return err
}
