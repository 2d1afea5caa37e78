package helm

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	releases "helm.sh/helm/v4/pkg/release"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// patience bounds every wait of Helm; it is not an expectation of speed.
const patience = 2 * time.Minute

type values = map[string]any

// user is a user of Helm with a namespace, whose release is named "r".
type user struct {
	*testing.T
	namespace string
	chart     string // in testdata
	getter    *genericclioptions.ConfigFlags
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	hookLog   bytes.Buffer // what pods of hooks wrote
}

// newUser makes the namespace and removes it after the test.
func newUser(t *testing.T, namespace string) *user {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	u := &user{T: t, namespace: namespace, chart: "shop", getter: genericclioptions.NewConfigFlags(true),
		client: kubernetes.NewForConfigOrDie(config), dynamic: dynamic.NewForConfigOrDie(config)}
	cache := t.TempDir()
	u.getter.KubeConfig, u.getter.Namespace, u.getter.CacheDir = &kubeconfig, &namespace, &cache
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := u.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.client.CoreV1().Namespaces().Delete(context.Background(), namespace,
			metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace %s: %v", namespace, err)
		}
	})
	return u
}

// config is new for each action, as it is for each call of the program helm.
func (u *user) config() *action.Configuration {
	u.Helper()
	c := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := c.Init(u.getter, u.namespace, "secret"); err != nil {
		u.Fatal(err)
	}
	c.SetHookOutputFunc(func(_, _, _ string) io.Writer { return &u.hookLog })
	return c
}

func (u *user) install(v values, options ...func(*action.Install)) (*release.Release, error) {
	u.Helper()
	chart, err := loader.Load(filepath.Join("testdata", u.chart))
	if err != nil {
		u.Fatal(err)
	}
	do := action.NewInstall(u.config())
	do.ReleaseName, do.Namespace = "r", u.namespace
	do.WaitStrategy, do.Timeout = kube.HookOnlyStrategy, patience
	for _, o := range options {
		o(do)
	}
	return v1(do.Run(chart, v))
}

func (u *user) upgrade(v values, options ...func(*action.Upgrade)) (*release.Release, error) {
	u.Helper()
	chart, err := loader.Load(filepath.Join("testdata", u.chart))
	if err != nil {
		u.Fatal(err)
	}
	do := action.NewUpgrade(u.config())
	do.Namespace = u.namespace
	do.WaitStrategy, do.Timeout = kube.HookOnlyStrategy, patience
	for _, o := range options {
		o(do)
	}
	return v1(do.Run("r", chart, v))
}

func (u *user) rollback(revision int) error {
	do := action.NewRollback(u.config())
	do.Version = revision
	do.WaitStrategy, do.Timeout = kube.HookOnlyStrategy, patience
	return do.Run("r")
}

// test answers the release and what its test pods wrote.
func (u *user) test() (r *release.Release, log string, err error) {
	do := action.NewReleaseTesting(u.config())
	do.Namespace, do.Timeout = u.namespace, patience
	found, shutdown, err := do.Run("r")
	if r, err = v1(found, err); err != nil {
		return nil, "", err
	}
	var out bytes.Buffer
	if err := do.GetPodLogs(&out, r); err != nil {
		return nil, "", err
	}
	return r, out.String(), shutdown()
}

// uninstall returns when all that the release had is gone.
func (u *user) uninstall() error {
	do := action.NewUninstall(u.config())
	do.WaitStrategy, do.Timeout = kube.StatusWatcherStrategy, patience
	_, err := do.Run("r")
	return err
}

// get is the release as the cluster has it.
func (u *user) get() *release.Release {
	u.Helper()
	r, err := v1(action.NewGet(u.config()).Run("r"))
	if err != nil {
		u.Fatal(err)
	}
	return r
}

// history is the status of each revision, the first first.
func (u *user) history() []string {
	u.Helper()
	all, err := action.NewHistory(u.config()).Run("r")
	if err != nil {
		u.Fatal(err)
	}
	out := make([]string, len(all))
	for _, r := range all {
		r, err := v1(r, nil)
		if err != nil || r.Version < 1 || r.Version > len(all) {
			u.Fatalf("revision %v of %d: %v", r, len(all), err)
		}
		out[r.Version-1] = r.Info.Status.String()
	}
	return out
}

func v1(r releases.Releaser, err error) (*release.Release, error) {
	out, _ := r.(*release.Release)
	return out, err
}
