package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"

	"carob/internal/cli/terminal"
)

// clusterStatus is what `carob status` prints.
type clusterStatus struct {
	DataDir    string       `json:"dataDir,omitempty"`    // of a local cluster
	Kubeconfig string       `json:"kubeconfig,omitempty"` // of a cluster selected with --kubeconfig
	Running    bool         `json:"running"`
	PID        int          `json:"pid,omitempty"`
	Started    *metav1.Time `json:"started,omitempty"`
	Version    string       `json:"version,omitempty"`
	URL        string       `json:"url,omitempty"`
	Ready      bool         `json:"ready"`
	Standalone bool         `json:"standalone,omitempty"` // URL is that of the node agent, there is no API server
	Problem    string       `json:"problem,omitempty"`
	MemoryKB   int64        `json:"memoryKB,omitempty"` // resident
	Nodes      []nodeStatus `json:"nodes,omitempty"`
	Pods       podCounts    `json:"pods"`
}

type nodeStatus struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Runtime string `json:"runtime"`
	Reason  string `json:"reason,omitempty"`
}

type podCounts struct {
	Total   int            `json:"total"`
	ByPhase map[string]int `json:"byPhase,omitempty"`
}

func (r *root) statusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether carob is running and its cluster is ready",
		Long: `Show whether carob is running and its cluster is ready. The exit code is 0 only if
the cluster is ready.`,
		Example: `  carob status
  carob status -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := r.status(cmd.Context())
			if err != nil {
				return err
			}
			if err := printObject(r.out, output, st,
				func(w io.Writer) error { return printStatus(w, st, output == "wide") }); err != nil {
				return err
			}
			if !st.Ready {
				return Exit{1}
			}
			return nil
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

// status returns the state of the cluster of --kubeconfig or of a data directory.
func (r *root) status(ctx context.Context) (clusterStatus, error) {
	if r.kubeconfig != "" {
		cfg, err := r.restConfig()
		if err != nil {
			return clusterStatus{}, err
		}
		st := clusterStatus{Kubeconfig: r.kubeconfig, URL: cfg.Host}
		r.readCluster(ctx, &st)
		st.Running = st.Problem == ""
		return st, nil
	}
	in, owner, running, err := r.runningInstance()
	if err != nil {
		return clusterStatus{}, err
	}
	st := clusterStatus{DataDir: in.DataDir, Running: running}
	if running {
		st.PID, st.Version, st.URL, st.Standalone = owner.PID, owner.Version, owner.URL, owner.Standalone
		st.Started = &metav1.Time{Time: owner.Started}
		st.MemoryKB = residentKB(owner.PID)
		of := *r
		of.kubeconfig = in.Kubeconfig
		of.readCluster(ctx, &st)
	}
	return st, nil
}

func (r *root) readCluster(ctx context.Context, st *clusterStatus) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := r.client()
	switch {
	case err != nil:
	case st.Standalone:
		err = fillFromAgent(ctx, c, st)
	default:
		err = fillStatus(ctx, c, st)
	}
	if err != nil {
		st.Problem = message(err)
	}
}

func fillStatus(ctx context.Context, c kubernetes.Interface, st *clusterStatus) error {
	if _, err := c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	st.Ready = len(nodes.Items) > 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		ns := nodeStatus{Name: n.Name, Ready: nodeReady(n), Runtime: n.Status.NodeInfo.ContainerRuntimeVersion}
		if !ns.Ready {
			st.Ready = false
			ns.Reason = notReadyReason(n)
		}
		st.Nodes = append(st.Nodes, ns)
	}
	pods, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	st.count(pods.Items)
	return nil
}

// fillFromAgent reads the status from a node agent without an API server.
func fillFromAgent(ctx context.Context, c kubernetes.Interface, st *clusterStatus) error {
	rest := c.Discovery().RESTClient()
	text, err := rest.Get().AbsPath("/pods").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("node agent: %w", err)
	}
	var pods corev1.PodList
	if err := json.Unmarshal(text, &pods); err != nil {
		return fmt.Errorf("node agent: read the pods: %w", err)
	}
	st.count(pods.Items)
	if _, err := rest.Get().AbsPath("/healthz").DoRaw(ctx); err != nil {
		return fmt.Errorf("node agent: %w", err)
	}
	st.Ready = true
	return nil
}

func (st *clusterStatus) count(pods []corev1.Pod) {
	st.Pods = podCounts{Total: len(pods), ByPhase: map[string]int{}}
	for i := range pods {
		st.Pods.ByPhase[string(pods[i].Status.Phase)]++
	}
}

func notReadyReason(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Message
		}
	}
	return "the node agent has not reported yet"
}

func printStatus(w io.Writer, st clusterStatus, wide bool) error {
	if !st.Running && st.Kubeconfig == "" {
		_, err := fmt.Fprintf(w, "carob is not running on %s\n", st.DataDir)
		return err
	}
	state := "ready"
	if !st.Ready {
		state = "not ready"
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if st.Kubeconfig != "" {
		fmt.Fprintf(tw, "cluster\t%s\nAPI server\t%s\nkubeconfig\t%s\n", state, st.URL, st.Kubeconfig)
	} else {
		fmt.Fprintf(tw, "carob\t%s, pid %d, up %s, %d MB\n", state, st.PID,
			duration.HumanDuration(time.Since(st.Started.Time)), st.MemoryKB/1024)
		server := "API server"
		if st.Standalone {
			server = "node agent"
		}
		fmt.Fprintf(tw, "%s\t%s\ndata\t%s\n", server, st.URL, st.DataDir)
	}
	if wide && st.Version != "" {
		fmt.Fprintf(tw, "version\t%s\n", st.Version)
	}
	for _, n := range st.Nodes {
		s := "Ready"
		if !n.Ready {
			s = "NotReady: " + terminal.Printable(n.Reason)
		}
		fmt.Fprintf(tw, "node %s\t%s, %s\n", n.Name, s, n.Runtime)
	}
	phases := []string{}
	for _, p := range []string{"Running", "Pending", "Succeeded", "Failed", "Unknown"} {
		if n := st.Pods.ByPhase[p]; n > 0 {
			phases = append(phases, fmt.Sprintf("%d %s", n, strings.ToLower(p)))
		}
	}
	fmt.Fprintf(tw, "pods\t%d%s\n", st.Pods.Total, parenthesised(phases))
	if st.Problem != "" {
		fmt.Fprintf(tw, "problem\t%s\n", st.Problem)
	}
	return tw.Flush()
}

func parenthesised(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// residentKB returns the resident memory of a process, or 0 if it is unknown.
func residentKB(pid int) int64 {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "VmRSS:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n
		}
	}
	return 0
}
