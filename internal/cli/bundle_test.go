package cli

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"

	"carob/internal/base/instance"
)

// TestBundleHasNoSecrets puts secrets wherever they can be and searches everything that is collected for them.
func TestBundleHasNoSecrets(t *testing.T) {
	const (
		password = `correct "horse" \battery`
		envValue = "env-value-of-somebody"
		short    = "xyz"
		argument = "given-as-argument"
		token    = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJl"
		unknown  = "of-no-secret-object"
		header   = "in-a-header-of-a-probe"
		key      = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIKbase64ofakey\n-----END EC PRIVATE KEY-----"
	)
	planted := []string{password, `correct \"horse\"`, envValue, `"` + short + `"`, argument, token, unknown, header,
		"MHcCAQEEIKbase64ofakey",
		base64.StdEncoding.EncodeToString([]byte(password))}
	in, err := instance.Derive(instance.Flags{DataDir: t.TempDir()}, "n")
	if err != nil {
		t.Fatal(err)
	}
	log := fmt.Sprintf(
		"a mount failed: %s\nquoted %q\nencoded %s\nAuthorization: Bearer %s\ndb_password=%s\n%s\nGET https://u:%s@host/\nharmless line\n",
		password, password, base64.StdEncoding.EncodeToString([]byte(password)), token, unknown, key, unknown)
	for name, text := range map[string]string{"carob.log": log, "carob.log.1": "older line, password=" + password + "\n",
		"flags.json": `{"NodeName":"n","EtcdServers":["https://root:` + unknown + `@etcd:2379"]}`} {
		if err := os.WriteFile(filepath.Join(in.DataDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop",
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: envValue,
			"team": "a"}}, Spec: corev1.PodSpec{
		NodeName: "n",
		Containers: []corev1.Container{{Name: "c", Image: "nginx:1", Args: []string{"--api-token=" + argument, "serve"},
			Env: []corev1.EnvVar{{Name: "DB", Value: envValue}, {Name: "PIN", Value: short}},
			LivenessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Auth",
						Value: header}}}}}}},
	}}
	cluster := fake.NewClientset(pod,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "shop"},
			Data: map[string][]byte{"p": []byte(password)}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "shop"},
			Data: map[string]string{"x": unknown}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "shop"},
			Message: "can't log in with " + password + " and " + envValue})
	b := &bundle{in: in, cluster: cluster, raw: func(_ context.Context, path string) ([]byte, error) {
		return fmt.Appendf(nil, `{"path":%q,"error":%q}`, path, "exec: "+password), nil
	}}
	b.collect(t.Context())
	all := unpacked(t, b)
	for _, name := range []string{"version.json", "flags.json", "carob.log", "pods.json", "nodes.json", "events.json",
		"metrics/apiserver.txt", "metrics/node-n.txt", "timeline/shop/web.json", "host/mounts.txt",
		"host/cgroups.txt"} {
		if all[name] == "" && !strings.HasPrefix(name, "host/") {
			t.Errorf("%s is missing or empty: %v", name, b.problems)
		}
	}
	for name, text := range all {
		for _, secret := range planted {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q in it:\n%s", name, secret, text)
			}
		}
	}
	for name, keeps := range map[string]string{"carob.log": "harmless line", "carob.log.1": "older line",
		"pods.json":   `"nginx:1"`,
		"events.json": "can't log in with", "flags.json": "@etcd:2379"} {
		if !strings.Contains(all[name], keeps) {
			t.Errorf("%s lacks %q: %s", name, keeps, all[name])
		}
	}
	if strings.Contains(fmt.Sprint(all), `"team": "(removed)"`) {
		t.Error("annotations of users are useful")
	}
}

// A user who may not list secrets gets no data of the cluster.
func TestBundleWithoutRightToListSecrets(t *testing.T) {
	in, err := instance.Derive(instance.Flags{DataDir: t.TempDir()}, "n")
	if err != nil {
		t.Fatal(err)
	}
	cluster := fake.NewClientset()
	cluster.PrependReactor("list", "secrets", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	b := &bundle{in: in, cluster: cluster, raw: func(context.Context, string) ([]byte, error) {
		t.Error("it queries the cluster")
		return nil, nil
	}}
	b.collect(t.Context())
	all := unpacked(t, b)
	if all["pods.json"] != "" || !strings.Contains(all["problems.txt"], "forbidden") {
		t.Errorf("%v", all)
	}
}

// The bundle has the files of the host also if the cluster does not answer: then they are needed most.
func TestBundleOfAClusterThatDoesNotAnswer(t *testing.T) {
	in, err := instance.Derive(instance.Flags{DataDir: t.TempDir()}, "n")
	if err != nil {
		t.Fatal(err)
	}
	b := &bundle{in: in, cluster: fake.NewClientset(), within: time.Millisecond,
		raw: func(ctx context.Context, _ string) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
	b.collect(t.Context())
	all := unpacked(t, b)
	if _, err := exec.LookPath("df"); err == nil && all["host/disk.txt"] == "" {
		t.Errorf("nothing about the disk: %v", b.problems)
	}
	for _, p := range b.problems {
		if strings.HasPrefix(p, "host/") && strings.Contains(p, context.DeadlineExceeded.Error()) {
			t.Error(p)
		}
	}
}

// unpacked writes a bundle and reads its files.
func unpacked(t *testing.T, b *bundle) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := b.write(file); err != nil {
		t.Fatal(err)
	}
	if err := b.write(file); err == nil {
		t.Error("an old bundle is overwritten")
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(h.Name, "x/")] = string(text)
	}
}
