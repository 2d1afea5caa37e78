package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/testwait"
)

// The manifests of documents 002 and 003 run under the documents' own image
// names, pulled from a registry as the documents do.

func TestDocumentNginx(t *testing.T) {
	c := shared
	c.remove(t, "pod-nginx1")
	c.kubectl(t, "apply", "-f", manifest("doc003-nginx"))
	c.wait(t, "pod/pod-nginx1", "condition=Ready")
	p := c.pod(t, "pod-nginx1")
	if body := get(t, "http://"+p.Status.PodIP); !strings.Contains(body, "nginx") {
		t.Errorf("the pod answers %q", body)
	}
	wide := c.kubectl(t, "get", "pods", "pod-nginx1", "-o", "wide")
	contains(t, "get -o wide", wide, "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED NODE",
		"READINESS GATES", "1/1", "Running", p.Status.PodIP, "e2e-node")
	contains(t, "describe", c.kubectl(t, "describe", "pod", "pod-nginx1"),
		"Image:          harbor.l00n9.icu/public/nginx:stable-perl",
		"Successfully assigned default/pod-nginx1 to e2e-node", "Container started")

	// The document's update: export, change the image, replace.
	exported := c.kubectl(t, "get", "pods", "pod-nginx1", "-o", "yaml")
	changed := strings.ReplaceAll(exported, "image: harbor.l00n9.icu/public/nginx:stable-perl", "image: nginx:1.26")
	c.kubectlIn(t, changed, "replace", "-f", "-")
	c.wait(t, "pod/pod-nginx1", "jsonpath={.status.containerStatuses[0].restartCount}=1")
	c.wait(t, "pod/pod-nginx1", "condition=Ready")
	if p = c.pod(t, "pod-nginx1"); !strings.HasSuffix(p.Status.ContainerStatuses[0].Image, "nginx:1.26") {
		t.Errorf("after replace the image is %s", p.Status.ContainerStatuses[0].Image)
	}
	c.kubectl(t, "delete", "-f", manifest("doc003-nginx"), "--grace-period=1")
}

func TestDocumentNamespaceBusybox(t *testing.T) {
	c := shared
	c.kubectl(t, "create", "-f", manifest("doc003-busybox"))
	t.Cleanup(func() { c.kubectl(t, "delete", "namespace", "m61-namespace") })
	// busybox's shell ends at once without a terminal: the pod crash-loops, as the document's does.
	c.wait(t, "pod/busybox", "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff", "-n",
		"m61-namespace")
	contains(t, "get", c.kubectl(t, "get", "pods", "-n", "m61-namespace"), "CrashLoopBackOff")
}

func TestDocumentCommandAndArgs(t *testing.T) {
	c := shared
	c.remove(t, "pod-with-cmd-and-args")
	c.kubectl(t, "apply", "-f", manifest("doc003-cmd-args"))
	c.wait(t, "pod/pod-with-cmd-and-args", "condition=Ready")
	c.shows(t, []string{"python3 /usr/local/bin/demo.py -p 8888"}, "exec", "pod-with-cmd-and-args", "--", "ps", "aux")
	contains(t, "describe", c.kubectl(t, "describe", "pod", "pod-with-cmd-and-args"), "/bin/sh",
		"python3 /usr/local/bin/demo.py -p $(port)", "port:  8888")
}

func TestDocumentHostNetwork(t *testing.T) {
	c := shared
	c.remove(t, "pod-hostnetwork-demo")
	c.kubectl(t, "apply", "-f", manifest("doc003-hostnetwork"))
	c.wait(t, "pod/pod-hostnetwork-demo", "condition=Ready")
	p := c.pod(t, "pod-hostnetwork-demo")
	if p.Status.PodIP == "" || p.Status.PodIP != p.Status.HostIP {
		t.Errorf("podIP %q, hostIP %q", p.Status.PodIP, p.Status.HostIP)
	}
	hostLinks, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range hostLinks {
		if !strings.HasPrefix(l.Name(), "lo") {
			continue
		}
		contains(t, "links in the pod", c.kubectl(t, "exec", "pod-hostnetwork-demo", "--", "ls", "/sys/class/net"),
			l.Name())
	}
}

func TestDocumentHostPort(t *testing.T) {
	c := shared
	c.remove(t, "pod-hostport-demo")
	c.kubectl(t, "apply", "-f", manifest("doc003-hostport"))
	c.wait(t, "pod/pod-hostport-demo", "condition=Ready")
	p := c.pod(t, "pod-hostport-demo")
	want := get(t, "http://"+p.Status.PodIP+":9999")
	got := get(t, "http://"+p.Status.HostIP+":8888")
	if want == "" || firstWord(got) != firstWord(want) {
		t.Errorf("host port answers %q, the pod %q", got, want)
	}
}

func TestDocumentPostStart(t *testing.T) {
	c := shared
	c.remove(t, "pod-poststart")
	c.kubectl(t, "apply", "-f", manifest("doc003-poststart"))
	c.wait(t, "pod/pod-poststart", "condition=Ready")
	contains(t, "hook's file", c.kubectl(t, "exec", "pod-poststart", "--", "cat", "/tmp/poststart.log"),
		"lifecycle poststart at")
	c.shows(t, []string{"The app is running at"}, "logs", "pod-poststart")
}

func TestDocumentPreStop(t *testing.T) {
	c := shared
	for _, f := range []string{"/tmp/prestop.log", "/tmp/poststart.log"} {
		_ = os.Remove(f)
		t.Cleanup(func() { _ = os.Remove(f) })
	}
	c.kubectl(t, "apply", "-f", manifest("doc003-prestop"))
	c.wait(t, "pod/pod-prestop", "condition=Ready")
	c.kubectl(t, "delete", "pod", "pod-prestop", "--grace-period=3")
	b, err := os.ReadFile("/tmp/prestop.log")
	if err != nil || !strings.Contains(string(b), "lifecycle prestop at") {
		t.Errorf("the preStop hook left %q (%v) on the host", b, err)
	}
	contains(t, "get", c.kubectlFails(t, "get", "pod", "pod-prestop"), "NotFound")
}

func TestDocumentRestartPolicies(t *testing.T) {
	c := shared
	c.remove(t, "pod-restart", "never", "always")
	c.kubectl(t, "apply", "-f", manifest("doc003-restart"))
	c.wait(t, "pod/pod-restart", "jsonpath={.status.phase}=Succeeded")
	contains(t, "get", c.kubectl(t, "get", "pod", "pod-restart"), "Completed", "0/1")

	c.kubectl(t, "run", "never", "--image=busybox:1.32.0", "--restart=Never", "--command", "--", "sh", "-c", "exit 3")
	c.wait(t, "pod/never", "jsonpath={.status.phase}=Failed")
	p := c.pod(t, "never")
	if s := p.Status.ContainerStatuses[0]; s.State.Terminated == nil || s.State.Terminated.ExitCode != 3 ||
		s.State.Terminated.Reason != "Error" || s.RestartCount != 0 {
		t.Errorf("status %+v", s)
	}

	c.kubectl(t, "run", "always", "--image=busybox:1.32.0", "--command", "--", "sh", "-c", "exit 4")
	c.wait(t, "pod/always", "jsonpath={.status.containerStatuses[0].restartCount}=1")
	var s corev1.ContainerStatus
	testwait.For(t, "it waits in its back-off", func() bool {
		p = c.pod(t, "always")
		s = p.Status.ContainerStatuses[0]
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
	if s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 4 {
		t.Errorf("lastState %+v", s.LastTerminationState)
	}
	want := fmt.Sprintf("back-off %s restarting failed container=always pod=always_default(%s)",
		10*time.Second<<(s.RestartCount-1), p.UID)
	if s.State.Waiting.Message != want {
		t.Errorf("L3.76: waiting %+v, want message %q", s.State.Waiting, want)
	}
}

func TestDocumentPullPolicies(t *testing.T) {
	c := shared
	c.remove(t, "absent", "nowhere", "twice")
	c.kubectl(t, "run", "absent", "--image=busybox:none", "--image-pull-policy=Never")
	c.wait(t, "pod/absent", "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImageNeverPull")
	c.kubectl(t, "run", "nowhere", "--image=busybox:none")
	c.wait(t, "pod/nowhere", "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff")
	c.waitEvent(t, "nowhere", "BackOff")
	c.hasEvents(t, "nowhere", `Normal Pulling Pulling image "busybox:none"`,
		`Warning Failed Failed to pull image "busybox:none": `, "Warning Failed Error: ErrImagePull",
		`Normal BackOff Back-off pulling image "busybox:none"`)
	c.kubectl(t, "run", "twice", "--image=busybox:1.30", "--image-pull-policy=Always", "--env=NAME=test", "--", "sleep",
		"3600")
	c.wait(t, "pod/twice", "condition=Ready")
	c.hasEvents(t, "twice", `Normal Pulling Pulling image "busybox:1.30"`,
		`Normal Pulled Successfully pulled image "busybox:1.30" in `)
	contains(t, "environment", c.kubectl(t, "exec", "twice", "--", "env"), "NAME=test")
}

func TestDocumentFullManifest(t *testing.T) {
	c := shared
	_, err := os.Stat("/data")
	if os.IsNotExist(err) {
		t.Cleanup(func() { _ = os.RemoveAll("/data") })
	} else {
		t.Cleanup(func() { _ = os.Remove("/data/volume") })
	}
	t.Cleanup(func() {
		c.kubectl(t, "label", "node", "e2e-node", "disktype-")
		c.kubectl(t, "delete", "-f", manifest("doc003-full"), "--grace-period=1", "--ignore-not-found")
	})
	c.kubectl(t, "apply", "-f", manifest("doc003-full"))
	// L2.40: the node selector keeps it waiting, and its status shows why.
	c.waitEvent(t, "full", "FailedScheduling")
	c.hasEvents(t, "full", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.")
	c.kubectl(t, "label", "node", "e2e-node", "disktype=ssd")
	c.wait(t, "pod/full", "condition=Ready")
	p := c.pod(t, "full")
	if p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("qosClass %s", p.Status.QOSClass)
	}
	for _, x := range []struct{ cmd, want string }{
		{"cat /empty/init", "prepared"},
		{"cat /secret/db/password", "s3cret"},
		{"cat /config/etc/app.conf", "colour=green"},
		{"pwd", "/usr/share/nginx"},
		{"echo $GREETING", "hello"},
		{"touch /empty/x 2>&1 || true", "Read-only file system"},
	} {
		contains(t, x.cmd, c.kubectl(t, "exec", "full", "-c", "web", "--", "sh", "-c", x.cmd), x.want)
	}
	if body := get(t, "http://"+p.Status.HostIP+":18080/"); !strings.Contains(body, "nginx") {
		t.Errorf("host port answers %q", body)
	}
}

// TestDocumentLiveness is document 002's pod with the events and the restart it prints.
func TestDocumentLiveness(t *testing.T) {
	t.Parallel()
	c := shared
	c.remove(t, "liveness-exec")
	c.kubectl(t, "apply", "-f", manifest("doc002-liveness"))
	c.wait(t, "pod/liveness-exec", "condition=Ready")
	c.waitEvent(t, "liveness-exec", "Unhealthy")
	c.wait(t, "pod/liveness-exec", "jsonpath={.status.containerStatuses[0].restartCount}=1")
	ev := c.events(t, "liveness-exec")
	order := []string{
		"Normal Scheduled Successfully assigned default/liveness-exec to e2e-node",
		`Normal Pulling Pulling image "busybox"`,
		`Normal Pulled Successfully pulled image "busybox" in `,
		"Normal Created Container created",
		"Normal Started Container started",
		"Warning Unhealthy Liveness probe failed: ",
		"Normal Killing Container liveness-demo failed liveness probe, will be restarted",
	}
	at := 0
	for _, want := range order {
		i := slices.IndexFunc(ev[at:],
			func(e string) bool { return strings.HasPrefix(e, strings.TrimRight(want, " ")) })
		if i < 0 {
			t.Fatalf("event %q is missing or out of order in:\n%s", want, strings.Join(ev, "\n"))
		}
		at += i
	}
	contains(t, "describe", c.kubectl(t, "describe", "pod/liveness-exec"), "Restart Count:  1")
}

// TestDocumentWordPress is the document's whole application: a database and WordPress as pods, with a Service each.
// WordPress finds the database by the Service's name, is set up and answers on the node port.
func TestDocumentWordPress(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir) // the Service's name is looked up in its own namespace
	c.kubectl(t, "apply", "-f", manifest("doc003-wordpress"))
	c.wait(t, "pod/mydb", "condition=Ready")
	c.wait(t, "pod/wordpress", "condition=Ready")
	p := c.pod(t, "wordpress")
	port := c.kubectl(t, "get", "service", "wp", "-o", "jsonpath={.spec.ports[0].nodePort}")
	page := "http://" + net.JoinHostPort(p.Status.HostIP, port) + "/"
	contains(t, "get pods,svc -o wide", c.kubectl(t, "get", "pods,svc", "-o", "wide"), "pod/mydb", "pod/wordpress",
		p.Status.PodIP, "service/mysql", "ClusterIP", "3306/TCP", "app=mysql", "service/wp", "NodePort",
		"80:"+port+"/TCP", "app=wp")
	// The database needs a while; until then WordPress reports that it can't reach it.
	testwait.Until(t, "WordPress has a database", func() error {
		if body := get(t, page+"wp-admin/install.php"); !strings.Contains(body, "WordPress &rsaquo; Installation") {
			return errors.New(firstWord(strings.TrimSpace(body)))
		}
		return nil
	})
	res, err := http.PostForm(page+"wp-admin/install.php?step=2", url.Values{"weblog_title": {"Written by a test"},
		"user_name": {"admin"}, "admin_password": {"a-Long-Passw0rd"}, "admin_password2": {"a-Long-Passw0rd"},
		"admin_email": {"admin@example.com"}, "Submit": {"Install WordPress"}})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.Contains(string(body), "Success!") {
		t.Fatalf("%s, %v:\n%s", res.Status, err, tail(body, 2000))
	}
	contains(t, "the site", get(t, page+"wp-login.php"), "Written by a test")
	contains(t, "the database", c.kubectl(t, "exec", "mydb", "--", "mysql", "-uwpuser", "-p123456", "-h", "mysql",
		"-e", "select option_value from wordpress.wp_options where option_name='blogname'"), "Written by a test")
	c.kubectl(t, "delete", "-f", manifest("doc003-wordpress"))
	c.gone(t, "pods,services", "-l", "app in (wp, mysql)")
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	var res *http.Response
	// A server needs a moment between the start of its process and its listen.
	testwait.Until(t, "get "+url, func() (err error) {
		res, err = http.DefaultClient.Do(req)
		return err
	})
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("get %s: %v", url, err)
	}
	return string(b)
}

func firstWord(s string) string {
	w, _, _ := strings.Cut(s, " ")
	return w
}
