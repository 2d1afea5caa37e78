package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every kubectl verb that the documents use, with the real kubectl.

func TestRunVariants(t *testing.T) {
	c := shared
	c.remove(t, "myapp-pod", "sleeper")
	c.kubectl(t, "run", "myapp-pod", "--image=harbor.l00n9.icu/public/myapp:v1.0", "--port=80",
		"--labels=app=myapp,tier=web")
	c.kubectl(t, "run", "sleeper", "--image=harbor.l00n9.icu/public/busybox:unstable-uclibc", "--", "sleep", "3600")
	c.wait(t, "pod/myapp-pod", "condition=Ready")
	c.wait(t, "pod/sleeper", "condition=Ready")
	contains(t, "selector", c.kubectl(t, "get", "pods", "-l", "app=myapp", "-o", "name"), "pod/myapp-pod")
	for _, mode := range []string{"client", "server"} {
		c.kubectl(t, "run", "dry", "--image=busybox", "--dry-run="+mode, "-o", "yaml")
	}
	contains(t, "dry run", c.kubectlFails(t, "get", "pod", "dry"), "NotFound")
	out := c.kubectl(t, "run", "once", "--rm", "-i", "--restart=Never", "--image=busybox:1.32.0", "--command", "--",
		"echo", "hello from a pod")
	contains(t, "run --rm -i", out, "hello from a pod", `pod "once" deleted`)
	c.kubectl(t, "run", "over", "--image=busybox:1.32.0", "--restart=Never",
		`--overrides={"spec":{"hostname":"changed"}}`, "--command", "--", "hostname")
	c.remove(t, "over")
	c.wait(t, "pod/over", "jsonpath={.status.phase}=Succeeded")
	contains(t, "overrides", c.kubectl(t, "logs", "over"), "changed")
}

// kubectl run reads the log of its container, then attaches to it. If the container ends between the two, its output is
// shown, and only once.
func TestRunShowsOutputOnce(t *testing.T) {
	nativeOnly(t, "containerd holds no output for a client that attaches late")
	c := shared
	for i := range 40 {
		// From an end before the first look to one after the attach.
		script := fmt.Sprintf("echo one; sleep 0.%03d; echo two; echo three >&2", i%4*(5+i))
		if i%4 == 0 {
			script = "echo one; echo two; echo three >&2"
		}
		script += fmt.Sprintf("; exit %d", i/4%2)
		name := fmt.Sprintf("said-%d", i)
		cmd := c.command(t.Context(), "run", name, "--rm", "-i", "--restart=Never", "--image=busybox:1.32.0",
			"--command", "--", "sh", "-c", script)
		cmd.Path = filepath.Join(filepath.Dir(carobBin), "kubectl") // 1.37's; older ones only attach
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != i/4%2 {
			t.Fatalf("%v: %s", err, out)
		}
		for _, line := range []string{"one\n", "two\n", "three\n"} {
			if n := strings.Count("\n"+string(out), "\n"+line); n != 1 {
				t.Errorf("%s: %q is shown %d times:\n%s", script, line, n, out)
			}
		}
	}
}

func TestOutputFormats(t *testing.T) {
	c := shared
	c.remove(t, "verbs")
	c.kubectl(t, "create", "-f", manifest("verbs"))
	c.wait(t, "pod/verbs", "condition=Ready")
	contains(t, "yaml", c.kubectl(t, "get", "pod", "verbs", "-o", "yaml"), "apiVersion: v1", "kind: Pod",
		"phase: Running")
	contains(t, "json", c.kubectl(t, "get", "pod", "verbs", "-o", "json"), `"kind": "Pod"`)
	if got := c.kubectl(t, "get", "pod", "verbs", "-o", "jsonpath={.spec.containers[*].name}"); got != "one two" {
		t.Errorf("jsonpath printed %q", got)
	}
	contains(t, "created twice", c.kubectlFails(t, "create", "-f", manifest("verbs")), "AlreadyExists")
	contains(t, "all namespaces", c.kubectl(t, "get", "pods", "-A"), "NAMESPACE", "verbs")
	contains(t, "explain", c.kubectl(t, "explain", "pod.spec.containers"), "FIELDS", "imagePullPolicy")
	c.kubectl(t, "delete", "-f", manifest("verbs"))
	contains(t, "get", c.kubectlFails(t, "get", "pod", "verbs"), "NotFound")
}

func TestLogs(t *testing.T) {
	c := shared
	c.remove(t, "verbs", "again")
	c.kubectl(t, "apply", "-f", manifest("verbs"))
	c.wait(t, "pod/verbs", "condition=Ready")
	c.shows(t, []string{"one 1"}, "logs", "verbs") // kubectl takes the first
	follow(t, c, "one 3", "logs", "-f", "verbs", "-c", "one")
	follow(t, c, "two 3", "logs", "-f", "verbs", "-c", "two")
	if got := c.kubectl(t, "logs", "verbs", "-c", "two", "--tail=1"); got != "two 3\n" {
		t.Errorf("--tail=1 printed %q", got)
	}
	contains(t, "--all-containers", c.kubectl(t, "logs", "verbs", "--all-containers=true", "--prefix"),
		"[pod/verbs/one] one 1", "[pod/verbs/two] two 1")
	contains(t, "unknown container", c.kubectlFails(t, "logs", "verbs", "-c", "three"),
		"three is not valid for pod verbs")

	c.kubectl(t, "run", "again", "--image=busybox:1.32.0", "--command", "--", "sh", "-c", "echo life $((++n)); exit 1")
	c.wait(t, "pod/again", "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff")
	contains(t, "logs -p", c.kubectl(t, "logs", "-p", "again"), "life 1")
}

// follow runs a kubectl that does not end by itself until it printed want.
func follow(t *testing.T, c *cluster, want string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.command(ctx, args...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := false
	for s := bufio.NewScanner(pipe); !found && s.Scan(); {
		found = strings.Contains(s.Text(), want)
	}
	cancel()
	_ = cmd.Wait()
	if !found {
		t.Fatalf("kubectl %s never printed %q", strings.Join(args, " "), want)
	}
}

func TestExec(t *testing.T) {
	c := shared
	c.remove(t, "shell")
	c.kubectl(t, "run", "shell", "--image=busybox:1.32.0", "--command", "--", "sleep", "3600")
	c.wait(t, "pod/shell", "condition=Ready")
	if got := c.kubectl(t, "exec", "shell", "--", "echo", "hi"); got != "hi\n" {
		t.Errorf("exec printed %q", got)
	}
	if got := c.kubectlIn(t, "a\nb\n", "exec", "-i", "shell", "--", "cat"); got != "a\nb\n" {
		t.Errorf("exec -i printed %q", got)
	}
	contains(t, "exit code", c.kubectlFails(t, "exec", "shell", "--", "sh", "-c", "exit 5"), "exit code 5")

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	term := openTerminal(t, c.command(ctx, "exec", "-it", "shell", "--", "sh"), 30, 100)
	term.expect("# ")
	term.write("tty; stty size\n")
	term.expect("/dev/pts/")
	term.expect("30 100")
	term.resize(40, 120)
	term.expect("# ")
	term.write("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo resi''zed\n")
	term.expect("resized")
	term.write("sh -c 'echo sle\"\"eping; exec sleep 1000'\n")
	term.expect("sleeping")
	term.write("\x03") // Ctrl-C ends sleep, not the shell
	term.write("echo st''ill here\n")
	term.expect("still here")
	term.write("exit 0\n")
	if err := term.end(); err != nil {
		t.Errorf("exec -it ended with %v", err)
	}
}

func TestCopyAndPortForward(t *testing.T) {
	c := shared
	c.remove(t, "web")
	c.kubectl(t, "run", "web", "--image=busybox:1.36", "--port=80", "--command", "--", "sh", "-c",
		"mkdir /www; exec httpd -f -h /www")
	c.wait(t, "pod/web", "condition=Ready")
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte("copied\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "cp", file, "web:/www/page.html")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.command(ctx, "port-forward", "pod/web", ":80")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(pipe)
	if !s.Scan() {
		t.Fatal("port-forward printed nothing")
	}
	addr := strings.Fields(s.Text())[2]
	contains(t, "page", get(t, "http://"+addr+"/page.html"), "copied")
	cancel()
	_ = cmd.Wait()
}

func TestDeleteVariants(t *testing.T) {
	c := shared
	for _, n := range []string{"graceful", "forced"} {
		c.kubectl(t, "run", n, "--image=busybox:1.32.0", "--command", "--", "sleep", "3600")
	}
	c.wait(t, "pod/graceful", "condition=Ready")
	c.wait(t, "pod/forced", "condition=Ready")
	contains(t, "delete --force", c.kubectl(t, "delete", "pod", "forced", "--force", "--grace-period=0"),
		`pod "forced" force deleted`)
	contains(t, "get", c.kubectlFails(t, "get", "pod", "forced"), "NotFound")
	c.kubectl(t, "delete", "pod", "graceful", "--grace-period=1")
	contains(t, "get", c.kubectlFails(t, "get", "pod", "graceful"), "NotFound")
}

func TestDebugContainer(t *testing.T) {
	c := shared
	c.remove(t, "patient", "debug-patient")
	c.kubectl(t, "run", "patient", "--image=harbor.l00n9.icu/public/myapp:v1.0")
	c.wait(t, "pod/patient", "condition=Ready")
	c.kubectl(t, "debug", "patient", "--image=busybox", "--target=patient", "-c", "doctor", "--", "sh", "-c",
		"ps; echo looked")
	c.wait(t, "pod/patient", "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}=0")
	contains(t, "log of the debug container", c.kubectl(t, "logs", "patient", "-c", "doctor"), "looked")
	c.kubectl(t, "debug", "patient", "--image=busybox", "--profile=sysadmin", "-c", "surgeon", "--", "sh", "-c",
		"mkdir -p /mnt && mount -t tmpfs none /mnt && echo operated")
	c.wait(t, "pod/patient", "jsonpath={.status.ephemeralContainerStatuses[1].state.terminated.exitCode}=0")
	contains(t, "log of the privileged debug container", c.kubectl(t, "logs", "patient", "-c", "surgeon"), "operated")
	c.kubectl(t, "debug", "patient", "--image=busybox", "--copy-to=debug-patient", "--share-processes", "-c", "doctor",
		"--", "sleep", "3600")
	c.wait(t, "pod/debug-patient", "condition=Ready")
}
