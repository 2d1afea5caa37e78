package cli

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/instance"
	"carob/internal/base/logfile"
	"carob/internal/cli/redact"
)

const (
	bundleLogEnd    = 4 << 20 // bytes of the log's end, in all its files
	bundleTimelines = 200     // pods

	bundleClusterTime = 45 * time.Second // for all requests to the cluster
	bundleStepTime    = 10 * time.Second // for one path of the API server, or one command
)

func (r *root) bundleCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect information for troubleshooting in one file, without secrets",
		Long: `Collect information for troubleshooting in one tar.gz file: version, flags,
status, the end of the log, timelines of pods, nodes, pods, events, metrics, and
carob's firewall rules, cgroups, and mounts on this host. If carob is not running,
the file contains what is available then.

Secrets, ConfigMaps, tokens, keys, and the values of environment variables are
removed wherever they appear. The file contains names of namespaces, pods, and
images: review it before you share it.`,
		Example: `  carob support-bundle
  carob support-bundle --output-file problem.tar.gz`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			in, err := r.instance()
			if err != nil {
				return err
			}
			if file == "" {
				file = fmt.Sprintf("carob-support-%s-%s.tar.gz", in.ID, time.Now().UTC().Format("20060102T150405Z"))
			}
			b := &bundle{in: in, version: r.version}
			limited, cancel := context.WithTimeout(ctx, bundleStepTime)
			defer cancel()
			if st, err := r.status(limited); err != nil {
				b.problem("status", err)
			} else if b.add("status.json", st); st.Running {
				c, err := r.client()
				if err != nil {
					b.problem("cluster", err)
				} else {
					b.cluster = c
					b.raw = func(ctx context.Context, path string) ([]byte, error) {
						return c.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
					}
				}
			}
			b.collect(ctx)
			if err := b.write(file); err != nil {
				return fmt.Errorf("write support bundle: %w", err)
			}
			for _, p := range b.problems {
				fmt.Fprintf(r.errOut, "not included: %s\n", p)
			}
			fmt.Fprintf(r.out, "%s: %d files, without secrets. Review it before you share it.\n",
				file, len(b.files))
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "output-file", "",
		"file to write (default carob-support-NAME-TIME.tar.gz in the current directory)")
	_ = cmd.MarkFlagFilename("output-file", "tar.gz")
	return cmd
}

// bundle is the collected information. Secret values are read first; objects and texts are redacted when all of them
// are known.
type bundle struct {
	in      instance.Instance
	version Version
	cluster kubernetes.Interface                                   // nil if the cluster does not run
	raw     func(ctx context.Context, path string) ([]byte, error) // reads a path of the API server
	within  time.Duration                                          // for the cluster; 0: bundleClusterTime

	redact   redact.Redactor
	objects  []bundled
	files    []bundled
	problems []string
}

type bundled struct {
	name string
	what any // an object, or a text as []byte
}

func (b *bundle) add(name string, what any) { b.objects = append(b.objects, bundled{name, what}) }

func (b *bundle) problem(what string, err error) {
	b.problems = append(b.problems, what+": "+b.redact.Text(message(err)))
}

func (b *bundle) collect(ctx context.Context) {
	b.add("version.json", b.version)
	if b.cluster != nil {
		// A cluster that does not answer must not use up the time for the files of the host.
		limited, cancel := context.WithTimeout(ctx, cmp.Or(b.within, bundleClusterTime))
		if err := b.addSecrets(limited); err != nil {
			// Without the values of secrets, the rest cannot be redacted.
			b.problem("all data of the cluster, because its secrets cannot be read and removed", err)
		} else {
			b.collectCluster(limited)
		}
		cancel()
	}
	b.collectHost(ctx)
	for _, o := range b.objects {
		text, isText := o.what.([]byte)
		var err error
		if isText {
			text = []byte(b.redact.Text(string(text)))
		} else {
			text, err = b.redact.Object(o.what)
		}
		if err != nil {
			b.problem(o.name, err)
			continue
		}
		b.files = append(b.files, bundled{o.name, text})
	}
	if len(b.problems) > 0 {
		b.files = append(b.files, bundled{"problems.txt", []byte(strings.Join(b.problems, "\n") + "\n")})
	}
}

// addSecrets reads the values of secrets and of the environment of pods, to remove them from all
// texts.
func (b *bundle) addSecrets(ctx context.Context) error {
	secrets, err := b.cluster.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%w (while listing secrets)", err) // "secrets: …" would be redacted
	}
	for _, s := range secrets.Items {
		for _, v := range s.Data {
			b.redact.Add(string(v))
		}
	}
	pods, err := b.cluster.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		b.addEnvironment(&pods.Items[i].Spec)
	}
	b.add("pods.json", pods)
	return nil
}

func (b *bundle) addEnvironment(spec *corev1.PodSpec) {
	redact := func(env []corev1.EnvVar) {
		for _, e := range env {
			b.redact.Add(e.Value)
		}
	}
	for _, c := range spec.InitContainers {
		redact(c.Env)
	}
	for _, c := range spec.Containers {
		redact(c.Env)
	}
	for _, c := range spec.EphemeralContainers {
		redact(c.Env)
	}
}

func (b *bundle) collectCluster(ctx context.Context) {
	core := b.cluster.CoreV1()
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		b.problem("nodes.json", err)
	} else {
		b.add("nodes.json", nodes)
	}
	events, err := core.Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		b.problem("events.json", err)
	} else {
		b.add("events.json", events)
	}
	get := func(name, path string) {
		limited, cancel := context.WithTimeout(ctx, bundleStepTime) // a node that does not answer
		defer cancel()
		if text, err := b.raw(limited, path); err != nil {
			b.problem(name, err)
		} else {
			b.add(name, text)
		}
	}
	get("metrics/apiserver.txt", "/metrics")
	get("readyz.txt", "/readyz")
	if nodes != nil {
		for _, n := range nodes.Items {
			get("metrics/node-"+n.Name+".txt", "/api/v1/nodes/"+n.Name+"/proxy/metrics")
		}
	}
	for _, o := range b.objects {
		pods, ok := o.what.(*corev1.PodList)
		if !ok {
			continue
		}
		for i, p := range pods.Items {
			if i == bundleTimelines {
				b.problem("timelines",
					fmt.Errorf("there are %d pods, the bundle has the first %d", len(pods.Items), bundleTimelines))
				break
			}
			if p.Spec.NodeName != "" {
				pod := p.Namespace + "/" + p.Name
				get("timeline/"+pod+".json", "/api/v1/nodes/"+p.Spec.NodeName+"/proxy/timeline/"+pod)
			}
		}
		break
	}
}

func (b *bundle) collectHost(ctx context.Context) {
	var flags map[string]any
	text, err := os.ReadFile(filepath.Join(b.in.DataDir, "flags.json"))
	if err == nil {
		err = json.Unmarshal(text, &flags)
	}
	switch {
	case err == nil:
		b.add("flags.json", flags)
	case !errors.Is(err, fs.ErrNotExist):
		b.problem("flags.json", err)
	}
	left := int64(bundleLogEnd)
	for n := 0; n <= logfile.Old && left > 0; n++ { // right after a rotation, what matters is in the older file
		file := b.in.LogFile
		if n > 0 {
			file = logfile.Previous(b.in.LogFile, n)
		}
		if text, err := logfile.End(file, left); err == nil {
			b.add(filepath.Base(file), text)
			left -= int64(len(text))
		} else if !errors.Is(err, fs.ErrNotExist) {
			b.problem(filepath.Base(file), err)
		}
	}
	for _, f := range []string{
		"/proc/version", "/proc/meminfo", "/proc/loadavg",
		"/proc/pressure/memory", "/proc/pressure/io", "/proc/pressure/cpu", "/etc/os-release",
	} {
		if text, err := os.ReadFile(f); err == nil { // not every kernel has all of them
			b.add("host"+f, text)
		}
	}
	b.add("host/mounts.txt", b.ownLines("/proc/self/mountinfo"))
	b.add("host/cgroups.txt", cgroupsBelow("/sys/fs/cgroup", b.in.CgroupRoot))
	for name, command := range map[string][]string{
		"host/nft.txt":   {"nft", "list", "ruleset"},
		"host/links.txt": {"ip", "-d", "addr", "show", b.in.BridgeName},
		"host/disk.txt":  {"df", "-i", b.in.DataDir},
	} {
		if _, err := exec.LookPath(command[0]); err != nil {
			b.problem(name, fmt.Errorf("%s is not installed", command[0]))
			continue
		}
		limited, cancel := context.WithTimeout(ctx, bundleStepTime)
		out, err := exec.CommandContext(limited, command[0], command[1:]...).CombinedOutput()
		cancel()
		if name == "host/nft.txt" {
			out = nftTables(out, b.in.NFTable)
		}
		if err != nil && len(out) == 0 {
			b.problem(name, err)
			continue
		}
		b.add(name, out)
	}
}

// ownLines returns the lines of a file that refer to this instance.
func (b *bundle) ownLines(file string) []byte {
	text, _ := os.ReadFile(file) // procfs
	var own []byte
	for l := range strings.Lines(string(text)) {
		if strings.Contains(l, b.in.DataDir+"/") || strings.Contains(l, b.in.RunDir+"/") {
			own = append(own, l...)
		}
	}
	return own
}

// nftTables keeps the tables with one name; the rules of others are not collected.
func nftTables(ruleset []byte, name string) []byte {
	var own []byte
	in := false
	for l := range strings.Lines(string(ruleset)) {
		if f := strings.Fields(l); len(f) >= 3 && f[0] == "table" {
			in = f[2] == name
		}
		if in {
			own = append(own, l...)
		}
	}
	return own
}

// cgroupsBelow lists the cgroups of an instance with their usage and limits.
func cgroupsBelow(mount, root string) []byte {
	var out strings.Builder
	hierarchies := []string{mount}
	entries, _ := os.ReadDir(mount)
	for _, e := range entries {
		hierarchies = append(hierarchies, filepath.Join(mount, e.Name()))
	}
	for _, h := range hierarchies {
		_ = filepath.WalkDir(filepath.Join(h, root), func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // what can't be read is left out
			}
			out.WriteString(p)
			for _, f := range []string{
				"memory.current", "memory.max", "memory.usage_in_bytes", "memory.limit_in_bytes",
				"pids.current", "pids.max", "cpu.max",
			} {
				if v, err := os.ReadFile(filepath.Join(p, f)); err == nil {
					fmt.Fprintf(&out, " %s=%s", f, strings.ReplaceAll(strings.TrimSpace(string(v)), " ", "/"))
				}
			}
			out.WriteByte('\n')
			return nil
		})
	}
	return []byte(out.String())
}

// write creates the archive, readable by its owner only, or leaves no file.
func (b *bundle) write(file string) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil { // also if the file exists: it may belong to another user
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(file)
		}
	}()
	z := gzip.NewWriter(f)
	t := tar.NewWriter(z)
	dir := strings.TrimSuffix(filepath.Base(file), ".tar.gz")
	for _, x := range b.files {
		text := x.what.([]byte)
		h := &tar.Header{Name: dir + "/" + strings.TrimPrefix(x.name, "/"), Mode: 0o600, Size: int64(len(text)),
			ModTime: time.Now()}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}
