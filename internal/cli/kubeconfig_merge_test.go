package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/cli/userconfig"
)

const adminConfig = `apiVersion: v1
kind: Config
clusters:
- name: carob
  cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: QQ==}
contexts:
- name: carob
  context: {cluster: carob, user: admin}
users:
- name: admin
  user: {client-certificate-data: QQ==, client-key-data: QQ==}
current-context: carob
`

func TestAddContext(t *testing.T) {
	own := `# mine
apiVersion: v1
kind: Config
x-of-tomorrow: {keep: [this]}
clusters:
- cluster:
    server: https://work.example
    proxy-url: socks5://x   # keep
  name: work
contexts:
- context: {cluster: work, user: me}
  name: work
users:
- name: me
  user:
    exec: {command: login, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}
preferences: {colors: true}
current-context: work
`
	once, err := userconfig.AddContext([]byte(own), []byte(adminConfig), "carob-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []string{"# mine", "x-of-tomorrow: {keep: [this]}", "proxy-url: socks5://x # keep",
		"command: login", "colors: true", "name: work"} {
		if !strings.Contains(string(once), keep) {
			t.Errorf("%q is lost:\n%s", keep, once)
		}
	}
	cfg, err := clientcmd.Load(once)
	if err != nil {
		t.Fatal(err)
	}
	if c := cfg.Contexts["carob-1"]; cfg.CurrentContext != "carob-1" || c == nil ||
		cfg.Clusters[c.Cluster].Server != "https://127.0.0.1:6443" ||
		string(cfg.AuthInfos[c.AuthInfo].ClientKeyData) != "A" {
		t.Errorf("%+v\n%s", cfg, once)
	}
	// Merged again, with a new address, and after the user chose a namespace: still one context,
	// with its namespace.
	cfg.Contexts["carob-1"].Namespace = "shop"
	chosen, err := clientcmd.Write(*cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := userconfig.AddContext(chosen, []byte(strings.ReplaceAll(adminConfig, "6443", "7443")), "carob-1")
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err = clientcmd.Load(again); err != nil || len(cfg.Contexts) != 2 || len(cfg.Clusters) != 2 ||
		len(cfg.AuthInfos) != 2 ||
		cfg.Contexts["carob-1"].Namespace != "shop" || cfg.Clusters["carob-1"].Server != "https://127.0.0.1:7443" {
		t.Errorf("%v\n%s", err, again)
	}
	for name, old := range map[string]string{"nothing": "", "null": "null\n", "comments": "# x\n",
		"empty lists": "clusters: []\ncontexts: null\nusers: []\n"} {
		out, err := userconfig.AddContext([]byte(old), []byte(adminConfig), "c")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg, err := clientcmd.Load(out); err != nil || cfg.Clusters["c"] == nil || cfg.AuthInfos["c"] == nil ||
			cfg.Contexts["c"] == nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	for name, old := range map[string]string{"a list": "- a\n", "text": "hello", "no yaml": "a: [",
		"a mapping of clusters": "clusters: {a: b}\n"} {
		if out, err := userconfig.AddContext([]byte(old), []byte(adminConfig), "c"); err == nil {
			t.Errorf("%s is overwritten: %s", name, out)
		}
	}
}

func TestKubeconfigMerge(t *testing.T) {
	dir := t.TempDir()
	admin := filepath.Join(dir, "admin")
	if err := os.WriteFile(admin, []byte(adminConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	// A missing file, through a link to it, in a missing directory.
	target, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte("clusters: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(dir, "new", "config"), link} {
		if out, err := carob(t, "kubeconfig", "--merge", "--kubeconfig", admin, "--file", file); err != nil ||
			!strings.Contains(out, "carob-") {
			t.Fatalf("%q, %v", out, err)
		}
		st, err := os.Stat(file)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, st, err)
		}
		if _, err := clientcmd.LoadFromFile(file); err != nil {
			t.Error(err)
		}
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	// If another process is writing, or the file is not a kubeconfig, it stays unchanged.
	if err := os.WriteFile(target+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(target)
	if _, err := carob(t, "kubeconfig", "--merge", "--kubeconfig", admin, "--file", target); err == nil ||
		!strings.Contains(err.Error(), ".lock") {
		t.Errorf("while it is locked: %v", err)
	}
	if after, _ := os.ReadFile(target); string(after) != string(before) {
		t.Error("it was written anyway")
	}
	// `sudo carob kubeconfig --merge` keeps the owner of the user's file.
	if os.Geteuid() == 0 {
		home := filepath.Join(dir, "home")
		if err := os.Mkdir(home, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(home, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(home, ".kube", "config")
		for range 2 {
			if _, err := carob(t, "kubeconfig", "--merge", "--kubeconfig", admin, "--file", file); err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{file, filepath.Dir(file)} {
				if st, err := os.Stat(f); err != nil || st.Sys().(*syscall.Stat_t).Uid != 1234 {
					t.Errorf("%s: %+v, %v", f, st, err)
				}
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
