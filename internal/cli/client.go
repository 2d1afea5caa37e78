package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"carob/internal/base/instance"
)

// kubeconfigPath finds the cluster: --kubeconfig, then --data-dir or its variable, then
// $KUBECONFIG, then the default data directory. The empty string leaves the choice to client-go
// ($KUBECONFIG may be a list).
func (r *root) kubeconfigPath() (string, error) {
	if r.kubeconfig != "" {
		return r.kubeconfig, checkFile(r.kubeconfig)
	}
	if r.chosenDataDir() == "" && os.Getenv("KUBECONFIG") != "" {
		return "", nil
	}
	return r.adminKubeconfig()
}

// checkFile refuses devices, whose content may never end, except /dev/null, which is an empty kubeconfig. Pipes, such
// as those of <(command), are fine. Whoever reads the file reports other errors.
func checkFile(path string) error {
	st, err := os.Stat(path)
	null, nullErr := os.Stat(os.DevNull)
	if err == nil && st.Mode()&os.ModeDevice != 0 && (nullErr != nil || !os.SameFile(st, null)) {
		return fmt.Errorf("%s is a device: name a file with --kubeconfig", path)
	}
	return nil
}

// adminKubeconfig is the admin kubeconfig in the data directory of a local cluster.
func (r *root) adminKubeconfig() (string, error) {
	in, err := r.instance()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(in.Kubeconfig); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return "", fmt.Errorf("only root can read %s: use sudo, or run `%s` as root to get your own copy",
				in.Kubeconfig, r.try("kubeconfig"))
		}
		return "", fmt.Errorf(
			"no cluster in %s: start one with `%s`, or choose another with --data-dir or --kubeconfig (`carob ls` lists them)",
			in.DataDir, r.try("up"))
	}
	return in.Kubeconfig, nil
}

// clusterPath is kubeconfigPath for commands that connect to the cluster: a local cluster must be
// running.
func (r *root) clusterPath() (string, error) {
	path, err := r.kubeconfigPath()
	if err != nil {
		return "", err
	}
	in, err := r.instance()
	if err != nil || path != in.Kubeconfig {
		return path, err
	}
	if _, running, err := instance.Running(in.LockFile); err == nil && !running {
		return "", fmt.Errorf("carob is not running on %s: start it with `%s`", in.DataDir, r.try("up"))
	}
	return path, nil
}

func (r *root) restConfig() (*rest.Config, error) {
	path, err := r.clusterPath()
	if err != nil {
		return nil, err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return connecting{next, cfg.Host} })
	return cfg, nil
}

// connecting marks errors of connections to a server, so that message can print them alone.
type connecting struct {
	http.RoundTripper
	server string
}

func (c connecting) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := c.RoundTripper.RoundTrip(req)
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		err = unreachable{c.server, failed.Err}
	}
	return res, err
}

// unreachable is the error of a server to which no connection can be made.
type unreachable struct {
	server string
	error
}

func (u unreachable) Error() string {
	return fmt.Sprintf("cannot connect to the API server %s: %v", u.server, u.error)
}

func (u unreachable) Unwrap() error { return u.error }

func (r *root) client() (*kubernetes.Clientset, error) {
	cfg, err := r.restConfig()
	if err != nil {
		return nil, err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return c, nil
}

// oneNode returns the named node, or the only node.
func oneNode(ctx context.Context, c kubernetes.Interface, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	switch len(list.Items) {
	case 0:
		return "", errors.New("the cluster has no node yet")
	case 1:
		return list.Items[0].Name, nil
	}
	return "", fmt.Errorf("the cluster has %d nodes: choose one with --node", len(list.Items))
}

// agentPath sends a request to the node agent through the API server.
func agentPath(c kubernetes.Interface, verb, node string, path ...string) *rest.Request {
	return c.CoreV1().RESTClient().Verb(verb).Resource("nodes").Name(node).SubResource("proxy").Suffix(path...)
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// standalone reports whether commands reach a node agent without an API server.
func (r *root) standalone() bool {
	_, owner, running, err := r.runningInstance()
	return err == nil && running && owner.Standalone && r.kubeconfig == ""
}

// runningInstance returns the instance of --data-dir, and its owner if it is running.
func (r *root) runningInstance() (instance.Instance, instance.Owner, bool, error) {
	in, err := r.instance()
	if err != nil {
		return in, instance.Owner{}, false, err
	}
	o, ok, err := instance.Running(in.LockFile)
	if errors.Is(err, os.ErrPermission) {
		return in, o, ok, fmt.Errorf("%s belongs to root: use sudo", in.DataDir)
	}
	return in, o, ok, err
}
