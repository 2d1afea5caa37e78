package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/journal"
	"carob/internal/cli/gantt"
)

func (r *root) timelineCommand() *cobra.Command {
	var namespace, node, output string
	cmd := &cobra.Command{
		Use:   "timeline pod/NAME",
		Short: "Show what happened to a pod, and when",
		Long: `Show the history of a pod as a chart: every action of the node agent with its
duration and cause, probe results that changed something, why containers were
killed, exit codes. It also works for deleted pods.`,
		Example: `  carob timeline pod/web
  carob timeline pod/web -n shop -o json`,
		Args: exactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return r.podNames(cmd.Context(), namespace), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := podName(args[0])
			if err != nil {
				return err
			}
			c, err := r.client()
			if err != nil {
				return err
			}
			read := podEntries
			if r.standalone() {
				read = ownEntries
			}
			entries, err := read(cmd.Context(), c, namespace, name, node)
			if err != nil {
				return err
			}
			return printObject(r.out, output, entries, func(w io.Writer) error {
				width, color := chartSize(w)
				if output == "wide" {
					width = max(width, 160)
				}
				return gantt.Render(w, entries, width, color)
			})
		},
	}
	addOutputFlag(cmd, &output)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the pod")
	cmd.Flags().StringVar(&node, "node", "", "node that ran the pod (default: query all nodes)")
	_ = cmd.RegisterFlagCompletionFunc("node", r.completeNodes)
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.completeNamespaces)
	return cmd
}

// podName takes "pod/x", "pods/x", "po/x" or "x".
func podName(arg string) (string, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok {
		return arg, nil
	}
	switch kind {
	case "pod", "pods", "po":
		return name, nil
	}
	return "", usagef("%q is not a pod: use pod/NAME", arg)
}

// podEntries queries the pod's node, or all nodes if the pod is gone.
func podEntries(ctx context.Context, c kubernetes.Interface, namespace, name, node string) ([]journal.Entry, error) {
	nodes, why := []string{node}, ""
	if node == "" {
		var err error
		if nodes, why, err = nodesOf(ctx, c, namespace, name); err != nil {
			return nil, err
		}
	}
	var all []journal.Entry
	for _, n := range nodes {
		b, err := agentPath(c, "GET", n, "timeline", namespace, name).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("query node %s: %w", n, err)
		}
		var entries []journal.Entry
		if err := json.Unmarshal(b, &entries); err != nil {
			return nil, fmt.Errorf("read the answer of node %s: %w", n, err)
		}
		all = append(all, entries...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no entries for pod %s/%s%s", namespace, name, cmp.Or(why, checkName))
	}
	return all, nil
}

// checkName is the advice about a pod without entries.
const checkName = ": check its name and its namespace (--namespace)"

// ownEntries queries a node agent without an API server, which is the only node.
func ownEntries(ctx context.Context, c kubernetes.Interface, namespace, name, _ string) ([]journal.Entry, error) {
	b, err := c.CoreV1().RESTClient().Get().AbsPath("/timeline", namespace, name).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no entries for pod %s/%s%s", namespace, name, checkName)
	}
	if err != nil {
		return nil, fmt.Errorf("query the node agent: %w", err)
	}
	var entries []journal.Entry
	if err := json.Unmarshal(b, &entries); err != nil {
		return nil, fmt.Errorf("read the answer of the node agent: %w", err)
	}
	return entries, nil
}

// nodesOf returns the node of a pod, or all nodes: for a pod without a node, one of them has the attempts of the
// scheduler; of a deleted pod, one has the history. why is then the reason.
func nodesOf(ctx context.Context, c kubernetes.Interface, namespace, name string) (nodes []string, why string,
	err error) {
	pod, err := c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && pod.Spec.NodeName != "":
		return []string{pod.Spec.NodeName}, "", nil
	case err == nil:
		why = ", which is not assigned to a node yet" + whyPending(pod)
	case !apierrors.IsNotFound(err):
		return nil, "", fmt.Errorf("get pod: %w", err)
	}
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("list nodes: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, "", errors.New("the cluster has no node")
	}
	for i := range list.Items {
		nodes = append(nodes, list.Items[i].Name)
	}
	return nodes, why, nil
}

func whyPending(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}

func (r *root) podNames(ctx context.Context, namespace string) []string {
	c, err := r.client()
	if err != nil {
		return nil
	}
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var names []string
	for i := range list.Items {
		names = append(names, "pod/"+list.Items[i].Name)
	}
	return names
}

// chartSize returns the width to draw for, and whether the terminal has colours.
func chartSize(w io.Writer) (width int, color bool) {
	width = terminalWidth(w)
	if width == 0 {
		return 100, false
	}
	return width, os.Getenv("NO_COLOR") == ""
}

// terminalWidth is how many columns the terminal has; 0 if w is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width
	}
	return 100
}
