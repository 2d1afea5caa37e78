package runtimetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *suite) sandboxStatus(id string) *cri.PodSandboxStatusResponse {
	s.Helper()
	resp, err := s.Runtime.PodSandboxStatus(s.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		s.Fatalf("sandbox status: %v", err)
	}
	return resp
}

func sandboxLife(s *suite) {
	before := time.Now()
	p := s.pod()
	st := s.sandboxStatus(p.id).Status
	s.want("state", st.State, cri.PodSandboxState_SANDBOX_READY)
	s.want("name", st.Metadata.Name, p.config.Metadata.Name)
	s.want("uid", st.Metadata.Uid, p.config.Metadata.Uid)
	s.want("annotation", st.Annotations["suite/annotation"], "kept as it is")
	s.want("label", st.Labels["io.kubernetes.pod.name"], p.config.Metadata.Name)
	if at := time.Unix(0, st.CreatedAt); at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		s.Errorf("created at %s, run at %s", at, before)
	}
	if s.Network && st.GetNetwork().GetIp() == "" {
		s.Error("the sandbox has no address")
	}
	for range 2 {
		if _, err := s.Runtime.StopPodSandbox(s.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			s.Fatalf("stop: %v", err)
		}
		s.want("state after stop", s.sandboxStatus(p.id).Status.State, cri.PodSandboxState_SANDBOX_NOTREADY)
	}
	if _, err := s.Runtime.RemovePodSandbox(s.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		s.Fatalf("remove: %v", err)
	}
	_, err := s.Runtime.PodSandboxStatus(s.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	s.wantCode("status of a removed sandbox", err, codes.NotFound)
}

func containerLife(s *suite) {
	p := s.pod()
	id := p.create("web", shell("echo up; exec sleep 1000"),
		func(c *cri.ContainerConfig) { c.Metadata.Attempt = 3; c.Annotations = map[string]string{"a": "b"} })
	st := s.status(id)
	s.want("state", st.State, cri.ContainerState_CONTAINER_CREATED)
	s.want("attempt", st.Metadata.Attempt, uint32(3))
	s.want("annotation", st.Annotations["a"], "b")
	s.want("name label", st.Labels["io.kubernetes.container.name"], "web")
	s.want("log path", st.LogPath, p.config.LogDirectory+"/web.log")
	s.want("started at", st.StartedAt, int64(0))
	if st.ImageRef == "" || st.CreatedAt == 0 {
		s.Errorf("image ref %q, created at %d", st.ImageRef, st.CreatedAt)
	}
	s.startContainer(id)
	st = s.status(id)
	s.want("state", st.State, cri.ContainerState_CONTAINER_RUNNING)
	if st.StartedAt < st.CreatedAt || st.FinishedAt != 0 {
		s.Errorf("created %d, started %d, finished %d", st.CreatedAt, st.StartedAt, st.FinishedAt)
	}
	_, err := s.Runtime.StartContainer(s.Context(), &cri.StartContainerRequest{ContainerId: id})
	if err == nil {
		s.Error("a running container was started again")
	}
	p.printed("up\n")
	s.stop(id, 0)
	st = s.status(id)
	s.want("state", st.State, cri.ContainerState_CONTAINER_EXITED)
	s.want("exit code", st.ExitCode, int32(137))
	if st.FinishedAt < st.StartedAt {
		s.Errorf("started %d, finished %d", st.StartedAt, st.FinishedAt)
	}
	s.removeContainer(id)
	_, err = s.Runtime.ContainerStatus(s.Context(), &cri.ContainerStatusRequest{ContainerId: id})
	s.wantCode("status of a removed container", err, codes.NotFound)
}

func (s *suite) stop(id string, grace int64) {
	s.Helper()
	if _, err := s.Runtime.StopContainer(s.Context(),
		&cri.StopContainerRequest{ContainerId: id, Timeout: grace}); err != nil {
		s.Fatalf("stop container: %v", err)
	}
}

func (s *suite) removeContainer(id string) {
	s.Helper()
	if _, err := s.Runtime.RemoveContainer(s.Context(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		s.Fatalf("remove container: %v", err)
	}
}

func exitCodes(s *suite) {
	p := s.pod()
	for i, c := range []struct {
		script string
		code   int32
		reason string
	}{
		{"exit 0", 0, "Completed"},
		{"exit 7", 7, "Error"},
		{"exit 255", 255, "Error"},
		{"kill -9 $$", 137, "Error"},
		{"kill -15 $$; sleep 1; exit 1", 1, "Error"}, // PID 1 ignores signals that it does not handle
		{"trap 'exit 5' TERM; kill -15 $$; sleep 9", 5, "Error"},
		{"sh -c 'kill -11 $$'; exit $?", 139, "Error"},
	} {
		if strings.HasPrefix(c.script, "kill -9") {
			// PID 1 of a namespace cannot even kill itself.
			continue
		}
		_, st := p.run(fmt.Sprint("c", i), shell(c.script))
		if st.ExitCode != c.code || st.Reason != c.reason {
			s.Errorf("%q: code %d, reason %q, want %d, %q", c.script, st.ExitCode, st.Reason, c.code, c.reason)
		}
	}
}

// The messages are those of containerd with runc; users search for them.
func startErrors(s *suite) {
	p := s.pod()
	for i, c := range []struct {
		command []string
		text    string
	}{
		{[]string{"no-such-program"}, `exec: "no-such-program": executable file not found in $PATH`},
		{[]string{"/no/such/program"}, `exec: "/no/such/program": stat /no/such/program: no such file or directory`},
		{[]string{"/etc/passwd"}, `exec: "/etc/passwd": permission denied`},
	} {
		id := p.create(fmt.Sprint("c", i), func(cfg *cri.ContainerConfig) { cfg.Command = c.command })
		_, err := s.Runtime.StartContainer(s.Context(), &cri.StartContainerRequest{ContainerId: id})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			s.Errorf("%q: got %v, want a message with %q", c.command, err, c.text)
			continue
		}
		st := s.ended(id)
		if st.ExitCode == 0 || st.Reason != "StartError" {
			s.Errorf("%q: code %d, reason %q", c.command, st.ExitCode, st.Reason)
		}
		s.removeContainer(id)
	}
}

func execSync(s *suite) {
	p := s.pod()
	id := p.start("web", shell("export INNER=1; exec sleep 1000"), func(c *cri.ContainerConfig) {
		c.Envs = []*cri.KeyValue{{Key: "GIVEN", Value: []byte("a b")}}
		c.WorkingDir = "/tmp"
	})
	out, errOut, code := s.exec(id, "sh", "-c", "echo out $GIVEN $PWD; echo err >&2; exit 3")
	if out != "out a b /tmp\n" || errOut != "err\n" || code != 3 {
		s.Errorf("stdout %q, stderr %q, code %d", out, errOut, code)
	}
	s.until("the first process is sleep, after its shell", func() bool {
		out, _, code := s.exec(id, "cat", "/proc/1/comm")
		return out == "sleep\n" && code == 0
	})
	big, _, _ := s.exec(id, "sh", "-c", "yes 0123456789 | head -n 5000")
	s.want("size of a large output", len(big), 55000)
	if _, errOut, code := s.exec(id, "sh", "-c", "kill -9 $$"); code != 137 {
		s.Errorf("killed by a signal: code %d, %q", code, errOut)
	}
	// A program that does not exist: an error or an exit code, never success.
	resp, err := s.Runtime.ExecSync(s.Context(),
		&cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"no-such-program"}, Timeout: 10})
	if err == nil && resp.ExitCode == 0 {
		s.Error("a missing program succeeded")
	}
	s.stop(id, 0)
	_, err = s.Runtime.ExecSync(s.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 10})
	if err == nil {
		s.Error("exec in an ended container succeeded")
	}
}

// A command that takes too long is killed, and the caller gets an error (L4: a probe's failure).
func execSyncTimeout(s *suite) {
	p := s.pod()
	id := p.start("web", shell("exec sleep 1000"))
	begin := time.Now()
	_, err := s.Runtime.ExecSync(s.Context(),
		&cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo begun; sleep 600"}, Timeout: 1})
	s.wantCode("exec over its time", err, codes.DeadlineExceeded)
	if took := time.Since(begin); took > patience {
		s.Errorf("the call came back after %s", took)
	}
	s.until("the command is gone", func() bool {
		out, _, _ := s.exec(id, "sh", "-c", "ps | grep -c '[s]leep 600'")
		return strings.TrimSpace(out) == "0"
	})
	s.want("container", s.status(id).State, cri.ContainerState_CONTAINER_RUNNING)
}

func stopWithGrace(s *suite) {
	p := s.pod()
	id := p.start("web", shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"))
	p.printed("ready") // the handler is installed
	s.stop(id, 30)
	st := s.status(id)
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 0 || st.Reason != "Completed" {
		s.Errorf("%v, code %d, reason %q", st.State, st.ExitCode, st.Reason)
	}
	p.wantOutput("web", "ready\nbye\n")
	s.stop(id, 30) // a second call is not an error
}

func stopEndsWithKill(s *suite) {
	p := s.pod()
	id := p.start("web", shell("trap '' TERM; echo ready; while :; do sleep 0.02; done"))
	p.printed("ready") // the handler is installed
	// A second, shorter stop takes effect at once.
	g, ctx := errgroup.WithContext(s.Context())
	g.Go(func() error {
		_, err := s.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 600})
		return err
	})
	s.stop(id, 1)
	if err := g.Wait(); err != nil {
		s.Errorf("the first stop: %v", err)
	}
	st := s.status(id)
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 {
		s.Errorf("%v, code %d", st.State, st.ExitCode)
	}
}

func stopSignal(s *suite) {
	p := s.pod()
	id := p.start("web", shell("trap 'exit 9' USR1; echo ready; while :; do sleep 0.02; done"),
		func(c *cri.ContainerConfig) { c.StopSignal = cri.Signal_SIGNAL_SIGUSR1 })
	p.printed("ready") // the handler is installed
	if s.status(id).StopSignal != cri.Signal_SIGNAL_SIGUSR1 {
		s.Skip("this runtime has no stop signals of the pod")
	}
	s.stop(id, 30)
	s.want("exit code", s.status(id).ExitCode, int32(9))
}

func stopSandbox(s *suite) {
	p := s.pod()
	id := p.start("web", shell("trap '' TERM; while :; do sleep 0.02; done"))
	if _, err := s.Runtime.StopPodSandbox(s.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		s.Fatal(err)
	}
	s.want("container", s.status(id).State, cri.ContainerState_CONTAINER_EXITED)
	_, err := s.Runtime.CreateContainer(s.Context(),
		&cri.CreateContainerRequest{PodSandboxId: p.id, Config: p.containerConfig("late"), SandboxConfig: p.config})
	if err == nil {
		s.Error("a container was created in a stopped sandbox")
	}
}

func removal(s *suite) {
	p := s.pod()
	running := p.start("web", shell("exec sleep 1000"))
	created := p.create("idle")
	for range 2 {
		s.removeContainer(running) // a running one is killed
		s.removeContainer(created)
	}
	other := p.start("other", shell("exec sleep 1000"))
	for range 2 {
		if _, err := s.Runtime.RemovePodSandbox(s.Context(),
			&cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			s.Fatalf("remove sandbox with a running container: %v", err)
		}
	}
	_, err := s.Runtime.ContainerStatus(s.Context(), &cri.ContainerStatusRequest{ContainerId: other})
	s.wantCode("container of a removed sandbox", err, codes.NotFound)
	_, err = s.Runtime.StopPodSandbox(s.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	s.wantCode("stop of a removed sandbox", err, codes.OK, codes.NotFound) // containerd 1 says the latter
}

func listFilters(s *suite) {
	label := map[string]string{"suite/list": s.Name()}
	withLabel := func(c *cri.PodSandboxConfig) { c.Labels["suite/list"] = s.Name() }
	a, b := s.pod(withLabel), s.pod(withLabel)
	c1, c2 := a.start("one", shell("exec sleep 1000")), a.create("two")
	c3 := b.create("three", func(c *cri.ContainerConfig) { c.Labels["tier"] = "x" })
	if _, err := s.Runtime.StopPodSandbox(s.Context(), &cri.StopPodSandboxRequest{PodSandboxId: b.id}); err != nil {
		s.Fatal(err)
	}
	sandboxes := func(f *cri.PodSandboxFilter) string {
		resp, err := s.Runtime.ListPodSandbox(s.Context(), &cri.ListPodSandboxRequest{Filter: f})
		if err != nil {
			s.Fatal(err)
		}
		var names []string
		for _, x := range resp.Items {
			names = append(names, x.Id)
		}
		return order(names, a.id, b.id)
	}
	s.want("by label", sandboxes(&cri.PodSandboxFilter{LabelSelector: label}), "12")
	s.want("by id", sandboxes(&cri.PodSandboxFilter{Id: b.id}), "2")
	s.want("ready",
		sandboxes(&cri.PodSandboxFilter{LabelSelector: label,
			State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}), "1")
	s.want("unknown id", sandboxes(&cri.PodSandboxFilter{Id: "0000"}), "")
	containers := func(f *cri.ContainerFilter) string {
		resp, err := s.Runtime.ListContainers(s.Context(), &cri.ListContainersRequest{Filter: f})
		if err != nil {
			s.Fatal(err)
		}
		var names []string
		for _, x := range resp.Containers {
			names = append(names, x.Id)
		}
		return order(names, c1, c2, c3)
	}
	s.want("of a sandbox", containers(&cri.ContainerFilter{PodSandboxId: a.id}), "12")
	s.want("running",
		containers(&cri.ContainerFilter{PodSandboxId: a.id,
			State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}), "1")
	s.want("by id", containers(&cri.ContainerFilter{Id: c2}), "2")
	s.want("by label",
		containers(&cri.ContainerFilter{LabelSelector: map[string]string{"tier": "x"}, PodSandboxId: b.id}), "3")
	s.want("label and other sandbox",
		containers(&cri.ContainerFilter{LabelSelector: map[string]string{"tier": "x"}, PodSandboxId: a.id}), "")
}

// order returns which of the known IDs are in a list: "13" for the first and the third.
func order(list []string, known ...string) string {
	var out strings.Builder
	for i, k := range known {
		for _, x := range list {
			if x == k {
				fmt.Fprint(&out, i+1)
			}
		}
	}
	if out.Len() != len(list) {
		fmt.Fprintf(&out, " and %d others", len(list)-out.Len())
	}
	return out.String()
}

// recursiveReadOnly reports whether the runtime supports recursive read-only mounts; containerd
// does since 2.0.
func (s *suite) recursiveReadOnly() bool {
	st, err := s.Runtime.Status(s.Context(), &cri.StatusRequest{})
	if err != nil {
		s.Fatal(err)
	}
	return slices.ContainsFunc(st.RuntimeHandlers,
		func(h *cri.RuntimeHandler) bool { return h.GetFeatures().GetRecursiveReadOnlyMounts() })
}

func errorCodes(s *suite) {
	ctx, id := s.Context(), strings.Repeat("0", 64)
	_, err := s.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	s.wantCode("status of an unknown container", err, codes.NotFound)
	_, err = s.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	s.wantCode("status of an unknown sandbox", err, codes.NotFound)
	_, err = s.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	s.wantCode("start of an unknown container", err, codes.NotFound)
	_, err = s.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	s.wantCode("exec in an unknown container", err, codes.NotFound)
	if _, err = s.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		s.wantCode("stop of an unknown container", err, codes.NotFound)
	}
	if _, err = s.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		s.Errorf("remove of an unknown container: %v", err)
	}
	p := s.pod()
	_, err = s.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config,
		Config: p.containerConfig("x",
			func(c *cri.ContainerConfig) { c.Image.Image = "docker.io/library/not-here:1" })})
	s.wantCode("container of an image that isn't here", err, codes.NotFound)
	bad := map[string]func(*cri.ContainerConfig){
		"a group without a user": func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.RunAsGroup = &cri.Int64Value{Value: 99}
		},
	}
	if s.recursiveReadOnly() {
		dir := s.TempDir()
		bad["a recursive read-only mount that is writable"] = func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: dir, ContainerPath: "/m", RecursiveReadOnly: true}}
		}
		for _, p := range []cri.MountPropagation{cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			cri.MountPropagation_PROPAGATION_BIDIRECTIONAL} {
			bad["a recursive read-only mount with "+p.String()] = func(c *cri.ContainerConfig) {
				c.Mounts = []*cri.Mount{{HostPath: dir, ContainerPath: "/m", Readonly: true, RecursiveReadOnly: true,
					Propagation: p}}
			}
		}
	}
	for what, change := range bad {
		if _, err = s.Runtime.CreateContainer(ctx,
			&cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config,
				Config: p.containerConfig("bad", change)}); err == nil {
			s.Errorf("%s is accepted", what)
		}
	}
	// The same name and attempt twice: CRI names are unique.
	p.create("one")
	if _, err = s.Runtime.CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config,
			Config: p.containerConfig("one")}); err == nil {
		s.Error("two containers have one name and attempt")
	}
	if _, err = s.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config}); err == nil {
		s.Error("two sandboxes have one name, uid and attempt")
	}
}

func events(s *suite) {
	if !s.Events {
		s.Skip("no events")
	}
	c, stop := s.listen()
	defer stop()
	p := s.pod()
	id := p.start("web", shell("exit 4"))
	s.ended(id)
	s.until("the end is reported", func() bool { return strings.HasSuffix(c.of(id), "STOPPED") })
	s.removeContainer(id)
	s.until("all events of the container", func() bool { return c.of(id) == "CREATED STARTED STOPPED DELETED" })
	p.remove(s.Context())
	s.until("all events of the sandbox", func() bool { return c.of(p.id) == "CREATED STARTED STOPPED DELETED" })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		if e.ContainerId != id || e.ContainerEventType != cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
			continue
		}
		// What an agent needs to continue without another call.
		s.want("sandbox in the event", e.GetPodSandboxStatus().GetId(), p.id)
		found := false
		for _, st := range e.ContainersStatuses {
			if st.Id == id {
				found = true
				s.want("exit code in the event", st.ExitCode, int32(4))
			}
		}
		s.want("container in the event", found, true)
	}
}

// listen subscribes to the runtime's events until stop.
func (s *suite) listen() (c *collector, stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	c = &collector{}
	go func() { done <- s.Runtime.ContainerEvents(ctx, c.add) }()
	stop = func() {
		cancel()
		select {
		case err := <-done:
			if err == nil {
				s.Error("ContainerEvents ended without an error")
			}
		case <-time.After(patience):
			s.Error("ContainerEvents outlives its context")
		}
	}
	// A subscriber does not know when its subscription is active: create pods until it receives
	// events.
	knock, tries := "", 0
	s.until("the subscription works", func() bool {
		if tries++; tries%20 == 1 {
			knock = s.pod().id
		}
		return c.of(knock) != ""
	})
	return c, stop
}

func manyAtOnce(s *suite) {
	const n = 12
	pods := make([]*pod, n)
	g := errgroup.Group{}
	for i := range n {
		g.Go(func() error {
			cfg := s.podConfig()
			resp, err := s.Runtime.RunPodSandbox(s.Context(), &cri.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				return err
			}
			p := &pod{s: s, id: resp.PodSandboxId, config: cfg}
			pods[i] = p
			created, err := s.Runtime.CreateContainer(s.Context(),
				&cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: cfg,
					Config: p.containerConfig("web", shell(fmt.Sprintf("echo %d; exit %d", i, i)))})
			if err != nil {
				return err
			}
			if _, err = s.Runtime.StartContainer(s.Context(),
				&cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
				return err
			}
			st := s.ended(created.ContainerId)
			if st.ExitCode != int32(i) {
				return fmt.Errorf("container %d ended with %d", i, st.ExitCode)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		s.Error(err)
	}
	for i, p := range pods {
		if p == nil {
			continue
		}
		p.wantOutput("web", fmt.Sprintln(i))
		g.Go(func() error {
			_, err := s.Runtime.RemovePodSandbox(context.Background(), &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		s.Error(err)
	}
}

func survivesRestart(s *suite) {
	p := s.pod()
	running := p.start("running",
		shell("echo before; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo after; exec sleep 1000"))
	ending := p.start("ending", shell("while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 6"))
	created := p.create("created", shell("exit 0"))
	s.until("the container prints", func() bool { return strings.Contains(p.output("running", "stdout"), "before") })
	pid1, _, _ := s.exec(running, "cat", "/proc/1/stat")

	// One container is stopped while there is no subscriber.
	s.exec(ending, "sh", "-c", "(sleep 0.3; touch /tmp/go) >/dev/null 2>&1 &")
	s.Runtime = s.Restart(s)

	s.want("sandbox", s.sandboxStatus(p.id).Status.State, cri.PodSandboxState_SANDBOX_READY)
	s.want("running", s.status(running).State, cri.ContainerState_CONTAINER_RUNNING)
	s.want("created", s.status(created).State, cri.ContainerState_CONTAINER_CREATED)
	s.want("code of one that ended meanwhile", s.ended(ending).ExitCode, int32(6))
	again, _, _ := s.exec(running, "cat", "/proc/1/stat")
	if f, g := strings.Fields(pid1), strings.Fields(again); len(f) < 22 || len(g) < 22 || f[21] != g[21] {
		s.Errorf("the container was restarted: %q, %q", pid1, again)
	}
	s.exec(running, "touch", "/tmp/go")
	s.until("logs go on", func() bool { return p.output("running", "stdout") == "before\nafter\n" })
	s.startContainer(created)
	s.want("code of one that was created before", s.ended(created).ExitCode, int32(0))
	p.start("new", shell("exit 0"))
	p.remove(s.Context())
}
