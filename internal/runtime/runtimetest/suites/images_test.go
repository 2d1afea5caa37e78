package suites

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/test/images/build"
)

// imported is an archive of the catalogue, imported into the runtime's store.
func (o *carob) imported(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(archive(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := o.images.Import(t.Context(), f, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := build.Refs(name); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("imported %v, want %v", got, want)
	}
}

// runImage runs one container of an image and returns the pod's address and the container's ID.
func (o *carob) runImage(t *testing.T, image string, env map[string]string, change ...func(*cri.ContainerConfig)) (ip,
	id string) {
	t.Helper()
	uid := fmt.Sprintf("image-%d", serial.Add(1))
	logs := filepath.Join(o.dir, "log", uid)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	sb := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: uid, Namespace: "images", Uid: uid}, Hostname: uid, LogDirectory: logs,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: o.cfg.CgroupRoot + "/pods/" + uid,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}},
	}
	run, err := o.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: sb})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(logs, "c.log"))
			t.Logf("log of %s:\n%s", image, text)
		}
		if _, err := o.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
			t.Error(err)
		}
		if _, err := o.rt.RemovePodSandbox(ctx,
			&cri.RemovePodSandboxRequest{PodSandboxId: run.PodSandboxId}); err != nil {
			t.Error(err)
		}
	})
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image}, LogPath: "c.log",
		Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: sb.Linux.SecurityContext.NamespaceOptions,
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}}},
	}
	for k, v := range env {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: k, Value: []byte(v)})
	}
	for _, f := range change {
		f(c)
	}
	created, err := o.rt.CreateContainer(t.Context(),
		&cri.CreateContainerRequest{PodSandboxId: run.PodSandboxId, Config: c, SandboxConfig: sb})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.rt.StartContainer(t.Context(),
		&cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	st, err := o.rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: run.PodSandboxId})
	if err != nil {
		t.Fatal(err)
	}
	return st.Status.Network.Ip, created.ContainerId
}

// answers waits until a page contains a text.
func answers(t *testing.T, url, text string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second}
	deadline := time.Now().Add(60 * time.Second)
	for {
		resp, err := client.Get(url)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && strings.Contains(string(body), text) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v, %.300q, want %q", url, err, body, text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Each image of the documents works in carob's runtime as its name promises.
func TestDocumentImages(t *testing.T) {
	o := startCarob(t)
	for _, c := range []struct{ name, ref, port, path, text string }{
		{"demo", "carob.local/demo:1", "8080", "/", "Hello from"},
		{"nginx", "harbor.l00n9.icu/public/nginx:stable-perl", "80", "/", "Welcome to nginx!"},
		{"myapp", "harbor.l00n9.icu/public/myapp:v1.0", "80", "/", "Hello MyApp | Version: v1"},
		{"pod-test", "harbor.l00n9.icu/public/pod-test:v0.1", "9999", "/", "ServerName: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.imported(t, c.name)
			ip, _ := o.runImage(t, c.ref, map[string]string{"PORT": c.port})
			answers(t, "http://"+ip+":"+c.port+c.path, c.text)
		})
	}
	t.Run("pod-test with args", func(t *testing.T) {
		ip, id := o.runImage(t, "harbor.l00n9.icu/public/pod-test:v0.1", nil, func(c *cri.ContainerConfig) {
			c.Command, c.Args = []string{"/bin/sh", "-c"}, []string{"python3 /usr/local/bin/demo.py -p 8888"}
		})
		answers(t, "http://"+ip+":8888/hostname", "ServerName: ")
		out, err := o.rt.ExecSync(t.Context(),
			&cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"ps", "aux"}, Timeout: 10})
		if err != nil || !strings.Contains(string(out.Stdout), "demo.py -p 8888") {
			t.Errorf("ps aux: %v, %v", out, err)
		}
	})
	t.Run("wordpress on mysql", func(t *testing.T) {
		if testing.Short() {
			t.Skip("large images")
		}
		o.imported(t, "mysql")
		o.imported(t, "wordpress")
		db, _ := o.runImage(t, "harbor.l00n9.icu/public/mysql:8.0.41-debian", map[string]string{
			"MYSQL_ROOT_PASSWORD": "123456", "MYSQL_DATABASE": "wordpress", "MYSQL_USER": "wpuser",
			"MYSQL_PASSWORD": "123456"})
		web, _ := o.runImage(t, "harbor.l00n9.icu/public/wordpress:php8.1-apache", map[string]string{
			"WORDPRESS_DB_HOST": db, "WORDPRESS_DB_NAME": "wordpress", "WORDPRESS_DB_USER": "wpuser",
			"WORDPRESS_DB_PASSWORD": "123456"})
		answers(t, "http://"+web+"/wp-admin/install.php", "WordPress")
		answers(t, "http://"+web+"/", "WordPress")
	})
}
