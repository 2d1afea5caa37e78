// Package runtimetest is the contract of runtime.Runtime as a test suite. Every implementation runs
// it, including the simulated one, so that the simulation is faithful. It uses CRI and nothing
// else, and removes every sandbox that it creates.
package runtimetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// Harness is one runtime under test.
type Harness struct {
	Runtime runtime.Runtime
	// Image is the reference of a busybox image that is present.
	Image string
	// LogRoot is a directory that the runtime may write logs to.
	LogRoot string
	// CgroupParent names the parent of a pod's cgroups; nil leaves it empty.
	CgroupParent func(pod string) string
	// Restart stops the runtime like a crash and opens it again on the same state; nil if that is
	// not possible.
	Restart func(testing.TB) runtime.Runtime
	// Events: ContainerEvents reports changes.
	Events bool
	// Network: a sandbox gets an address.
	Network bool
	// LimitPod creates the parent of a pod's cgroups with a memory limit; nil if that is not
	// possible.
	LimitPod func(tb testing.TB, parent string, bytes int64)
	// Records: this runtime's reports are the record that others are compared with
	// (testdata/reports.txt). Differs are the lines in which this runtime differs, in the same
	// form, each group below "# " and its reason.
	Records bool
	Differs string
	// Scripted: no processes run; the effect of a container's script is simulated. Tests of what
	// happens inside a container are skipped.
	Scripted bool
}

// patience is the time limit of every wait.
const patience = 30 * time.Second

var serial atomic.Int64

// suite is a harness with the helpers of the tests.
type suite struct {
	Harness
	*testing.T
}

// Run tests a runtime. Open is called once for each group of tests.
func Run(t *testing.T, open func(testing.TB) Harness) {
	tests := []struct {
		name   string
		run    func(*suite)
		inside bool // needs real processes
	}{
		{"SandboxLife", sandboxLife, false},
		{"ContainerLife", containerLife, false},
		{"ExitCodes", exitCodes, false},
		{"StartErrors", startErrors, false},
		{"Logs", logs, true},
		{"LogReopen", logReopen, true},
		{"EnvAndDirectory", envAndDirectory, true},
		{"Users", users, true},
		{"Mounts", mounts, true},
		{"ReadOnlyRoot", readOnlyRoot, true},
		{"Capabilities", capabilities, true},
		{"ExecSync", execSync, true},
		{"ExecSyncTimeout", execSyncTimeout, true},
		{"StopWithGrace", stopWithGrace, false},
		{"StopEndsWithKill", stopEndsWithKill, false},
		{"StopSignal", stopSignal, false},
		{"StopSandboxStopsContainers", stopSandbox, false},
		{"RemovalIsIdempotent", removal, false},
		{"ListFilters", listFilters, false},
		{"ErrorCodes", errorCodes, false},
		{"OutOfMemory", outOfMemory, true},
		{"SharedNamespaces", sharedNamespaces, true},
		{"PIDNamespaceOfPod", podPIDNamespace, true},
		{"HostNetwork", hostNetwork, true},
		{"Stats", stats, true},
		{"Images", images, false},
		{"Version", version, false},
		{"Events", events, false},
		{"ManyAtOnce", manyAtOnce, false},
		{"Reports", reports, false},
	}
	h := open(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.inside && h.Scripted {
				t.Skip("no processes run here")
			}
			test.run(&suite{Harness: h, T: t})
		})
	}
	t.Run("SurvivesRestart", func(t *testing.T) {
		h := open(t)
		if h.Restart == nil {
			t.Skip("cannot be restarted here")
		}
		survivesRestart(&suite{Harness: h, T: t})
	})
}

// pod is a sandbox created by a test.
type pod struct {
	s      *suite
	id     string
	config *cri.PodSandboxConfig
}

func (s *suite) podConfig(change ...func(*cri.PodSandboxConfig)) *cri.PodSandboxConfig {
	n := serial.Add(1)
	name := fmt.Sprintf("%s-%d",
		strings.ToLower(strings.ReplaceAll(s.Name()[strings.LastIndex(s.Name(), "/")+1:], "_", "-")), n)
	uid := fmt.Sprintf("%08x-0000-4000-8000-%012x", os.Getpid(), n)
	cfg := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "suite", Uid: uid},
		Hostname:     name,
		LogDirectory: filepath.Join(s.LogRoot, "suite_"+name+"_"+uid),
		Labels:       map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": uid},
		Annotations:  map[string]string{"suite/annotation": "kept as it is"},
		Linux: &cri.LinuxPodSandboxConfig{
			Resources: &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
	if s.CgroupParent != nil {
		cfg.Linux.CgroupParent = s.CgroupParent(name)
	}
	for _, f := range change {
		f(cfg)
	}
	return cfg
}

func (s *suite) pod(change ...func(*cri.PodSandboxConfig)) *pod {
	s.Helper()
	cfg := s.podConfig(change...)
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		s.Fatal(err)
	}
	resp, err := s.Runtime.RunPodSandbox(s.Context(), &cri.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		s.Fatalf("run sandbox: %v", err)
	}
	p := &pod{s: s, id: resp.PodSandboxId, config: cfg}
	s.Cleanup(func() { p.remove(context.Background()) })
	return p
}

func (p *pod) remove(ctx context.Context) {
	p.s.Helper()
	_, err := p.s.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	p.s.wantCode("stop sandbox", err, codes.OK, codes.NotFound)
	if _, err := p.s.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.s.Errorf("remove sandbox: %v", err)
	}
}

type containerOption = func(*cri.ContainerConfig)

func shell(script string) containerOption {
	return func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"sh", "-c"}, []string{script} }
}

func (p *pod) containerConfig(name string, change ...containerOption) *cri.ContainerConfig {
	cfg := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: p.s.Image},
		LogPath:  name + ".log",
		Labels:   map[string]string{"io.kubernetes.container.name": name},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions,
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
	for _, f := range change {
		f(cfg)
	}
	return cfg
}

func (p *pod) create(name string, change ...containerOption) string {
	p.s.Helper()
	resp, err := p.s.Runtime.CreateContainer(p.s.Context(),
		&cri.CreateContainerRequest{PodSandboxId: p.id, Config: p.containerConfig(name, change...),
			SandboxConfig: p.config})
	if err != nil {
		p.s.Fatalf("create container: %v", err)
	}
	return resp.ContainerId
}

func (p *pod) start(name string, change ...containerOption) string {
	p.s.Helper()
	id := p.create(name, change...)
	p.s.startContainer(id)
	return id
}

func (s *suite) startContainer(id string) {
	s.Helper()
	if _, err := s.Runtime.StartContainer(s.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		s.Fatalf("start container: %v", err)
	}
}

func (s *suite) status(id string) *cri.ContainerStatus {
	s.Helper()
	resp, err := s.Runtime.ContainerStatus(s.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		s.Fatalf("container status: %v", err)
	}
	return resp.Status
}

// until polls until ok; this is the only way that works with every runtime.
func (s *suite) until(what string, ok func() bool) {
	s.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// ended waits until a container has exited.
func (s *suite) ended(id string) *cri.ContainerStatus {
	s.Helper()
	var st *cri.ContainerStatus
	s.until("container ends", func() bool {
		st = s.status(id)
		return st.State == cri.ContainerState_CONTAINER_EXITED
	})
	return st
}

// run runs a script to its end and returns its standard output.
func (p *pod) run(name string, change ...containerOption) (string, *cri.ContainerStatus) {
	p.s.Helper()
	id := p.start(name, change...)
	st := p.s.ended(id)
	if p.s.Scripted {
		return "", st
	}
	return p.output(name, "stdout"), st
}

// output returns what a container wrote to a stream, from its log.
func (p *pod) output(name, stream string) string {
	p.s.Helper()
	var out strings.Builder
	for _, l := range p.log(name) {
		if l.stream == stream {
			out.WriteString(l.text)
			if l.full {
				out.WriteString("\n")
			}
		}
	}
	return out.String()
}

// printed waits until the container web has printed text, if containers print.
func (p *pod) printed(text string) {
	p.s.Helper()
	if !p.s.Scripted {
		p.s.until(fmt.Sprintf("web prints %q", text),
			func() bool { return strings.Contains(p.output("web", "stdout"), text) })
	}
}

// wantOutput checks everything that a container printed, if containers print.
func (p *pod) wantOutput(name, text string) {
	p.s.Helper()
	if !p.s.Scripted {
		p.s.want("output of "+name, p.output(name, "stdout"), text)
	}
}

type logLine struct {
	at     time.Time
	stream string
	full   bool
	text   string
}

// log reads a container's log, and fails on a line that is not in CRI's format.
func (p *pod) log(name string) []logLine {
	p.s.Helper()
	return p.s.readLog(filepath.Join(p.config.LogDirectory, name+".log"))
}

func (s *suite) readLog(file string) []logLine {
	s.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	var lines []logLine
	for _, line := range strings.SplitAfter(string(body), "\n") {
		if line == "" {
			continue
		}
		parts := strings.SplitN(line, " ", 4)
		if len(parts) != 4 || !strings.HasSuffix(line, "\n") || parts[2] != "F" && parts[2] != "P" ||
			parts[1] != "stdout" && parts[1] != "stderr" {
			s.Fatalf("log line %q is not <time> <stream> <F|P> <text>", line)
		}
		at, err := time.Parse(time.RFC3339Nano, parts[0])
		if err != nil {
			s.Fatalf("log line %q: %v", line, err)
		}
		lines = append(lines, logLine{at: at, stream: parts[1], full: parts[2] == "F",
			text: strings.TrimSuffix(parts[3], "\n")})
	}
	return lines
}

// exec runs a command in a container and returns its output and exit code.
func (s *suite) exec(id string, cmd ...string) (stdout, stderr string, code int32) {
	s.Helper()
	resp, err := s.Runtime.ExecSync(s.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: 20})
	if err != nil {
		s.Fatalf("exec %q: %v", cmd, err)
	}
	return string(resp.Stdout), string(resp.Stderr), resp.ExitCode
}

func (s *suite) wantCode(what string, err error, want ...codes.Code) {
	s.Helper()
	got := status.Code(err)
	if slices.Contains(want, got) {
		return
	}
	s.Errorf("%s: %v, want code %v", what, err, want)
}

func (s *suite) want(what string, got, want any) {
	s.Helper()
	if got != want {
		s.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// collector gathers events until its test ends.
type collector struct {
	mu     sync.Mutex
	events []*cri.ContainerEventResponse
}

func (c *collector) add(e *cri.ContainerEventResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
}

// of returns the types of events about one ID, in order.
func (c *collector) of(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var types []string
	for _, e := range c.events {
		if e.ContainerId == id {
			types = append(types, short(e.ContainerEventType))
		}
	}
	return strings.Join(types, " ")
}

func short(t cri.ContainerEventType) string {
	return strings.TrimSuffix(strings.TrimPrefix(t.String(), "CONTAINER_"), "_EVENT")
}
