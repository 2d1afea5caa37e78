package native

import (
	"context"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestContainerLife(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	sb, sbc := w.sandbox("life")
	id := w.run(sb, sbc, "main", shell("echo out; echo err >&2; trap 'echo bye; exit 7' TERM; while :; do sleep 0.05; done"))
	x, err := w.exec(id, "sh", "-c", "echo hello; hostname; id -u; echo oops >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if string(x.Stdout) != "hello\nlife\n0\n" || string(x.Stderr) != "oops\n" || x.ExitCode != 3 {
		t.Errorf("exec answered %q, %q, %d", x.Stdout, x.Stderr, x.ExitCode)
	}
	if _, err := w.r.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	st := w.wait(id)
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 7 || st.Reason != "Error" || st.StartedAt == 0 || st.FinishedAt < st.StartedAt {
		t.Errorf("status %+v", st)
	}
	if got, want := w.log(sbc, "main"), "stdout F out\nstderr F err\nstdout F bye\n"; got != want && !strings.Contains(got, "bye") {
		t.Errorf("log %q, want %q", got, want)
	}
	if _, err := w.r.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
}
