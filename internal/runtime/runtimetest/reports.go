package runtimetest

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The recorded reports are the native runtime's; the others are compared with them line by line.
const recordFile = "testdata/reports.txt"

//go:embed testdata/reports.txt
var recorded string

// scenarios are those that compare reports. Each records what a runtime reports, without names,
// times, and numbers that differ from run to run.
var scenarios = []struct {
	name   string
	run    func(*reporter)
	inside bool
}{
	{"life", reportLife, false},
	{"ends", reportEnds, false},
	{"codes", reportCodes, false},
	{"events", reportEvents, false},
	{"memory", reportMemory, true},
	{"stats", reportStats, true},
	{"exec", reportExec, true},
	{"logs", reportLogs, true},
	{"update", reportUpdate, true},
	{"view", reportView, true},
	{"privileged", reportPrivileged, true},
}

// reporter is a suite that records reports.
type reporter struct {
	*suite
	scenario string
	lines    map[string]string
}

func (r *reporter) note(what string, value any) {
	line := r.scenario + ": " + what
	if _, twice := r.lines[line]; twice {
		r.Fatalf("%q is noted twice", line)
	}
	r.lines[line] = ignoredSignals.ReplaceAllStringFunc(fmt.Sprint(value), withoutInherited)
}

var ignoredSignals = regexp.MustCompile("SigIgn: ([0-9a-f]{16})")

// withoutInherited replaces a set of ignored signals by the empty one if the tests' own process ignores them all: the
// parent of a daemon passes this on to the containers of some runtimes, which may set some of them back.
func withoutInherited(field string) string {
	set := func(digits string) uint64 {
		n, _ := strconv.ParseUint(digits, 16, 64) // the kernel writes sixteen digits
		return n
	}
	own, _ := os.ReadFile("/proc/self/status")
	_, inherited, _ := strings.Cut(string(own), "SigIgn:\t")
	inherited, _, _ = strings.Cut(inherited, "\n")
	if set(strings.TrimPrefix(field, "SigIgn: "))&^set(inherited) != 0 {
		return field
	}
	return "SigIgn: 0000000000000000"
}

// call records the gRPC code of a call.
func (r *reporter) call(what string, err error) { r.note(what, status.Code(err)) }

// reports compares what the runtime reports with the record.
func reports(s *suite) {
	r := &reporter{suite: s, lines: map[string]string{}}
	ran := map[string]bool{}
	for _, sc := range scenarios {
		if sc.inside && s.Scripted {
			continue
		}
		before := len(r.lines)
		s.Run(sc.name, func(t *testing.T) {
			r.suite, r.scenario = &suite{Harness: s.Harness, T: t}, sc.name
			sc.run(r)
		})
		ran[sc.name] = len(r.lines) > before
	}
	r.suite = s
	if s.Failed() {
		return // an incomplete record cannot be compared
	}
	if s.Records && os.Getenv("UPDATE") != "" {
		s.write(r)
		return
	}
	want := map[string]string{}
	parse(recorded, ran, func(line, result, _ string) { want[line] = result })
	parse(s.Differs, ran, func(line, result, why string) {
		if want[line] == result || why == "" {
			s.Errorf("%s: listed as a difference without being one, or without a reason", line)
		}
		want[line] = result
	})
	for _, line := range slices.Sorted(maps.Keys(r.lines)) {
		if w, known := want[line]; !known || w != r.lines[line] {
			s.Errorf("%s\n     reports %q\n instead of %q", line, r.lines[line], w)
		}
		delete(want, line)
	}
	for line, w := range want {
		if w != "" {
			s.Errorf("%s: no report instead of %q", line, w)
		}
	}
}

// parse reads the lines of the scenarios that ran; why is the comment before them.
func parse(text string, ran map[string]bool, each func(line, result, why string)) {
	why := ""
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if comment, ok := strings.CutPrefix(l, "# "); ok {
			why = comment
			continue
		}
		line, result, _ := strings.Cut(l, " = ")
		if scenario, _, ok := strings.Cut(line, ":"); ok && ran[scenario] {
			each(line, result, why)
		}
	}
}

func (s *suite) write(r *reporter) {
	var b strings.Builder
	b.WriteString("# What the native runtime reports; every implementation is compared with it (reports.go).\n")
	b.WriteString("# Written by: UPDATE=1 go test -run 'TestNative$/Reports' ./internal/runtime/runtimetest/suites\n")
	for _, line := range slices.Sorted(maps.Keys(r.lines)) {
		fmt.Fprintf(&b, "%s = %s\n", line, r.lines[line])
	}
	if err := os.WriteFile("../"+recordFile, []byte(b.String()), 0o644); err != nil {
		s.Fatal(err)
	}
}

// fields lists the fields of a message that are set, without their values.
func fields(m proto.Message) string {
	var names []string
	var walk func(prefix string, m protoreflect.Message)
	walk = func(prefix string, m protoreflect.Message) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			name := prefix + string(f.Name())
			if f.Message() == nil || f.IsList() || f.IsMap() ||
				strings.HasSuffix(string(f.Message().Name()), "Int64Value") {
				names = append(names, name)
			} else {
				walk(name+".", v.Message())
			}
			return true
		})
	}
	walk("", m.ProtoReflect())
	slices.Sort(names)
	return strings.Join(names, " ")
}

func state(st *cri.ContainerStatus) string {
	message := "nothing"
	if st.Message != "" {
		message = "a message"
	}
	return fmt.Sprintf("%s, code %d, reason %q, %s", strings.TrimPrefix(st.State.String(), "CONTAINER_"), st.ExitCode,
		st.Reason, message)
}

func reportLife(r *reporter) {
	p := r.pod()
	sandbox := func(when string) {
		st := r.sandboxStatus(p.id).Status
		r.note("sandbox "+when, strings.TrimPrefix(st.State.String(), "SANDBOX_"))
		r.note("sandbox's status "+when, fields(st))
	}
	sandbox("running")
	list, err := r.Runtime.ListPodSandbox(r.Context(),
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: p.id}})
	if err != nil || len(list.Items) != 1 {
		r.Fatalf("%v, %v", list, err)
	}
	r.note("sandbox in a list", fields(list.Items[0]))
	id := p.create("web", shell("echo up; exec sleep 1000"),
		func(c *cri.ContainerConfig) { c.Annotations = map[string]string{"a": "b"} })
	container := func(when string) {
		st := r.status(id)
		r.note("container "+when, state(st))
		r.note("container's status "+when, fields(st))
	}
	container("created")
	r.startContainer(id)
	container("running")
	listed, err := r.Runtime.ListContainers(r.Context(),
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: id}})
	if err != nil || len(listed.Containers) != 1 {
		r.Fatalf("%v, %v", listed, err)
	}
	r.note("container in a list", fields(listed.Containers[0]))
	if _, err := r.Runtime.StopPodSandbox(r.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		r.Fatal(err)
	}
	container("stopped with its sandbox")
	sandbox("stopped")
}

func reportEnds(r *reporter) {
	p := r.pod()
	for i, c := range []struct{ what, script string }{
		{"exit 0", "exit 0"}, {"exit 7", "exit 7"}, {"exit 255", "exit 255"},
		{"its own signal, handled", "trap 'exit 5' TERM; kill -15 $$; sleep 9"},
		{"its own signal, not handled", "kill -15 $$; sleep 1; exit 1"},
		{"a killed child", "sh -c 'kill -11 $$'; exit $?"},
	} {
		_, st := p.run(fmt.Sprint("c", i), shell(c.script))
		r.note(c.what, state(st))
	}
	for what, c := range map[string]struct {
		script string
		grace  int64
	}{
		"stopped, with a handler": {"trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done", 30},
		"stopped, deaf":           {"trap '' TERM; echo ready; while :; do sleep 0.02; done", 1},
		"killed":                  {"echo ready; exec sleep 1000", 0},
	} {
		name := strings.ReplaceAll(strings.ReplaceAll(what, ",", ""), " ", "-")
		id := p.start(name, shell(c.script))
		if !r.Scripted {
			r.until(what+" is ready", func() bool { return p.output(name, "stdout") == "ready\n" })
		}
		r.stop(id, c.grace)
		r.note(what, state(r.status(id)))
	}
	for _, command := range []string{"no-such-program", "/no/such/program", "/etc/passwd"} {
		id := p.create(strings.ReplaceAll(command[1:], "/", "-"),
			func(c *cri.ContainerConfig) { c.Command = []string{command} })
		_, err := r.Runtime.StartContainer(r.Context(), &cri.StartContainerRequest{ContainerId: id})
		r.call("start of "+command, err)
		r.note("status of "+command, state(r.ended(id)))
	}
}

func reportCodes(r *reporter) {
	ctx, p := r.Context(), r.pod()
	running, created, exited := p.start("running", shell("exec sleep 1000")),
		p.create("created", shell("exec sleep 1000")), p.start("exited", shell("exit 0"))
	r.ended(exited)
	stopped := r.pod()
	if _, err := r.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: stopped.id}); err != nil {
		r.Fatal(err)
	}
	for _, c := range []struct{ what, id string }{{"unknown", strings.Repeat("0", 64)}, {"no id", ""},
		{"exited", exited}, {"created", created}, {"running", running}} {
		_, err := r.Runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: c.id})
		r.call("reopen the log, "+c.what, err)
		_, err = r.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id})
		r.call("status, "+c.what, err)
		_, err = r.Runtime.Exec(ctx, &cri.ExecRequest{ContainerId: c.id, Cmd: []string{"true"}, Stdout: true})
		r.call("exec, "+c.what, err)
		_, err = r.Runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.id, Stdout: true})
		r.call("attach, "+c.what, err)
		if c.id != created {
			_, err = r.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.id})
			r.call("start, "+c.what, err)
		}
		if c.id != running {
			_, err = r.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id})
			r.call("stop, "+c.what, err)
			_, err = r.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.id})
			r.call("remove, "+c.what, err)
		}
	}
	for _, c := range []struct{ what, id string }{{"unknown", strings.Repeat("0", 64)}, {"no id", ""},
		{"stopped", stopped.id}} {
		_, err := r.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: c.id})
		r.call("sandbox status, "+c.what, err)
		_, err = r.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: c.id})
		r.call("stop sandbox, "+c.what, err)
		_, err = r.Runtime.CreateContainer(ctx,
			&cri.CreateContainerRequest{PodSandboxId: c.id, SandboxConfig: p.config, Config: p.containerConfig("c")})
		r.call("create in sandbox, "+c.what, err)
		_, err = r.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: c.id})
		r.call("remove sandbox, "+c.what, err)
	}
	_, err := r.Runtime.CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config, Config: p.containerConfig("running")})
	r.call("a name twice", err)
	_, err = r.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
	r.call("a sandbox twice", err)
	_, err = r.Runtime.RunPodSandbox(ctx,
		&cri.RunPodSandboxRequest{Config: r.podConfig(), RuntimeHandler: "nobody-has-it"})
	r.call("an unknown handler", err)
	_, err = r.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config,
		Config: p.containerConfig("x",
			func(c *cri.ContainerConfig) { c.Image.Image = "docker.io/library/not-here:1" })})
	r.call("an image that is not here", err)
}

func reportEvents(r *reporter) {
	if !r.Events {
		r.Skip("no events")
	}
	c, stop := r.listen()
	defer stop()
	p := r.pod()
	names := map[string]string{p.id: "sandbox"}
	start := func(name, script string) string {
		id := p.create(name, shell(script))
		names[id] = name
		r.startContainer(id)
		return id
	}
	a := start("a", "exit 4")
	r.until("the end of a is reported", func() bool { return strings.HasSuffix(c.of(a), "STOPPED") })
	b := start("b", "exec sleep 1000")
	r.stop(b, 0)
	r.until("the end of b is reported", func() bool { return strings.HasSuffix(c.of(b), "STOPPED") })
	r.removeContainer(a)
	start("d", "exec sleep 1000")
	p.remove(context.Background())
	r.until("all of the sandbox", func() bool { return strings.HasSuffix(c.of(p.id), "DELETED") })
	for id, name := range names {
		r.note(name, c.of(id))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, e := range c.events {
		if name := names[e.ContainerId]; name != "" {
			all = append(all, name+" "+short(e.ContainerEventType))
		}
	}
	r.note("all", strings.Join(all, ", "))
}
