package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// killedPod is a container that records when it starts, gets SIGTERM, and ends. It is ready after its first line.
const killedPod = `
        image: busybox:1.32.0
        volumeMounts: [{name: story, mountPath: /story}]
        lifecycle: {postStart: {exec: {command: [sh, -c, "until [ -e /started ]; do usleep 10000; done"]}}}
        command:
        - sh
        - -c
        - |
          end() { trap "" TERM; echo $HOSTNAME term; usleep 100000; echo $HOSTNAME end; exit 0; }
          exec >>/story/FILE
          trap end TERM
          echo $HOSTNAME start
          touch /started
          while :; do usleep 20000; done
      volumes: [{name: story, hostPath: {path: STORY}}]
`

const killedDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: rolls}
spec:
  replicas: 3
  selector: {matchLabels: {app: rolls}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: rolls}}
    spec:
      containers:
      - name: c` + killedPod

const killedSet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: shrinks}
spec:
  replicas: 0
  serviceName: none
  selector: {matchLabels: {app: shrinks}}
  template:
    metadata: {labels: {app: shrinks}}
    spec:
      containers:
      - name: c` + killedPod

const killedJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: counts-ROUND}
spec:
  completionMode: Indexed
  completions: 6
  parallelism: 3
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      volumes: [{name: story, hostPath: {path: STORY}}]
      containers:
      - name: c
        image: busybox:1.32.0
        command: [sh, -c, "echo $JOB_COMPLETION_INDEX start >>/story/FILE; usleep 200000; echo $JOB_COMPLETION_INDEX end >>/story/FILE"]
        volumeMounts: [{name: story, mountPath: /story}]
`

// under is what is under way when carob is killed.
type under struct {
	name   string
	before func(round int) // brings it where it can begin
	// begin are arguments and the input of kubectl; it is called again when carob is killed before it has answered.
	begin func(round int) (stdin string, args []string)
	end   func(round int) // waits until it is over, and looks whether all is as it should be
}

// TestWorkloadsSurviveKills kills carob with SIGKILL at random moments of a rolling update, of a StatefulSet that is
// scaled down, and of an indexed Job, and starts it again. Each ends as its spec says: of the Deployment, as many pods
// as minimum run at each moment, also while carob does not; of the StatefulSet, one pod ends after the other, and no
// ordinal is there twice; each index of the Job runs and counts once; no container starts twice (W1.31, W2.50, W3.45,
// W5.31). CAROB_KILLS sets how often in all (the default is 3), CAROB_KILLS_SEED the moments.
func TestWorkloadsSurviveKills(t *testing.T) {
	t.Parallel()
	kills, seed := number(t, "CAROB_KILLS", 3), number(t, "CAROB_KILLS_SEED", 1)
	c := startCluster(t, "--registry-config", mirrors.dir)
	all := []under{rolls(t, c), shrinks(t, c), counts(t, c)}
	round, lasts := 0, make([]time.Duration, len(all))
	for i, u := range all { // how long it takes, without a kill
		u.before(round)
		began := time.Now()
		stdin, args := u.begin(round)
		c.kubectlIn(t, stdin, args...)
		u.end(round)
		lasts[i] = time.Since(began)
		round++
	}
	t.Logf("without a kill: %v", lasts)
	for n := range kills {
		u := all[n%len(all)]
		random := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
		moment := time.Duration(random.Int64N(int64(lasts[n%len(all)])))
		u.before(round)
		stdin, args := u.begin(round)
		begun := make(chan error, 1)
		go func() {
			_, err := c.tryKubectl(stdin, args...)
			begun <- err
		}()
		<-time.After(moment)
		c.kill(t)
		err := <-begun
		if err := c.up(); err != nil {
			t.Fatal(err)
		}
		if err != nil { // carob was gone before it answered
			stdin, args = u.begin(round)
			c.kubectlIn(t, stdin, args...)
		}
		u.end(round)
		if t.Failed() {
			t.Fatalf("kill %d of seed %d: %s, after %v; answered: %v", n, seed, u.name, moment, err == nil)
		}
		round++
	}
}

// number is the number in an environment variable.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

func placed(dir, manifest, file string) string {
	return strings.NewReplacer("STORY", dir, "FILE", file).Replace(manifest)
}

// rolls is a rolling update of three pods that keeps three available.
func rolls(t *testing.T, c *cluster) under {
	dir := t.TempDir()
	s := &story{file: filepath.Join(dir, "rolls")}
	c.kubectlIn(t, placed(dir, killedDeployment, "rolls"), "apply", "-f", "-")
	status := func() { c.kubectl(t, "rollout", "status", "deployment/rolls", "--timeout="+patience.String()) }
	status()
	running := map[string]bool{}
	for _, line := range s.next(t, 3) {
		running[strings.TrimSuffix(line, "-start")] = true
	}
	started := map[string]bool{}
	return under{"rolling update", func(int) {},
		func(round int) (string, []string) {
			return "", []string{"set", "env", "deployment/rolls", "ROUND=" + strconv.Itoa(round)}
		},
		func(int) {
			status()
			for _, line := range s.next(t, 9) { // three pods start, three get SIGTERM, and end
				i := strings.LastIndex(line, "-")
				switch pod, what := line[:i], line[i+1:]; {
				case what == "start" && !started[pod]:
					running[pod], started[pod] = true, true
				case what == "term" && running[pod]:
					delete(running, pod)
				case what != "end":
					t.Errorf("the pods wrote %s again", line)
				}
				if len(running) < 3 {
					t.Errorf("after %s %d pods run, 3 must", line, len(running))
				}
			}
			var pods struct{ Items []corev1.Pod }
			var sets struct{ Items []appsv1.ReplicaSet }
			for what, all := range map[string]any{"pods": &pods, "replicasets": &sets} {
				if err := json.Unmarshal([]byte(c.kubectl(t, "get", what, "-l", "app=rolls", "-o", "json")),
					all); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range pods.Items {
				if p.DeletionTimestamp == nil && !running[p.Name] {
					t.Errorf("pod %s is there and does not run", p.Name)
				}
				// A container whose start was interrupted is made again, which counts as a restart; that no
				// process started twice is known from what the pods wrote.
				if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
					t.Logf("pod %s counts %d restarts:\n%s", p.Name, n, c.carob(t, "timeline", "pod/"+p.Name))
				}
			}
			have := 0
			for _, r := range sets.Items {
				if n := *r.Spec.Replicas; n != 0 {
					have++
				}
			}
			if len(running) != 3 || have != 1 {
				t.Errorf("%d pods run, %d replica sets have pods", len(running), have)
			}
		}}
}

// shrinks is a StatefulSet that is scaled from three to none.
func shrinks(t *testing.T, c *cluster) under {
	dir := t.TempDir()
	s := &story{file: filepath.Join(dir, "shrinks")}
	c.kubectlIn(t, placed(dir, killedSet, "shrinks"), "apply", "-f", "-")
	lines := func(from, to int, words ...string) []string {
		all := each(from, to, words...)
		for i := range all {
			all[i] = strings.Replace(all[i], "web-", "shrinks-", 1)
		}
		return all
	}
	return under{"scale-down",
		func(int) {
			c.kubectl(t, "scale", "sts/shrinks", "--replicas=3")
			c.wait(t, "sts/shrinks", "jsonpath={.status.readyReplicas}=3")
			s.want(t, "creation", lines(0, 2, "start")...)
		},
		func(int) (string, []string) { return "", []string{"scale", "sts/shrinks", "--replicas=0"} },
		func(int) {
			c.wait(t, "sts/shrinks", "jsonpath={.status.replicas}=0")
			s.want(t, "scale-down", lines(2, 0, "term", "end")...)
			c.gone(t, "pods", "-l", "app=shrinks")
		}}
}

// counts is an indexed Job of six.
func counts(t *testing.T, c *cluster) under {
	dir := t.TempDir()
	file := func(round int) string { return fmt.Sprint("counts-", round) }
	return under{"indexed Job", func(int) {},
		func(round int) (string, []string) {
			return strings.ReplaceAll(placed(dir, killedJob, file(round)), "ROUND", strconv.Itoa(round)),
				[]string{"apply", "-f", "-"}
		},
		func(round int) {
			name := file(round)
			c.wait(t, "job/"+name, "condition=complete")
			if s := c.job(t, name).Status; s.Succeeded != 6 || s.Failed != 0 || s.CompletedIndexes != "0-5" {
				t.Errorf("status %+v", s)
			}
			s := &story{file: filepath.Join(dir, name)}
			got := slices.Sorted(slices.Values(s.lines(t)))
			var want []string
			for i := range 6 {
				want = append(want, fmt.Sprint(i, "-end"), fmt.Sprint(i, "-start"))
			}
			if !slices.Equal(got, want) {
				t.Errorf("the pods wrote %q, want each index once", got)
			}
			pods := c.kubectl(t, "get", "pods", "-l", "job-name="+name, "-o", "name")
			if n := strings.Count(pods, "\n"); n != 6 {
				t.Errorf("%d pods for six indexes", n)
			}
			c.kubectl(t, "delete", "job", name)
		}}
}

// next waits for so many lines after those that were looked at, and takes all that are there.
func (s *story) next(t *testing.T, lines int) []string {
	t.Helper()
	testwait.Until(t, "the pods write", func() error {
		if got := s.lines(t); len(got) < lines {
			return fmt.Errorf("%d lines of %d:\n%s", len(got), lines, strings.Join(got, "\n"))
		}
		return nil
	})
	got := s.lines(t)
	s.read += len(got)
	return got
}
