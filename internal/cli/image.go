package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"carob/internal/base/imageapi"
	"carob/internal/cli/terminal"
)

func (r *root) imageCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Import, list, pull, and remove images of a node",
		Example: `  carob image import busybox.tar
  docker save my-app:1 | carob image import -
  carob image pull docker.io/library/nginx:1.27
  carob image tag nginx:1.27 localhost/web:1
  carob image ls`,
	}
	cmd.PersistentFlags().StringVar(&node, "node", "", "node to use (default: the only one)")
	cmd.AddCommand(r.imageImport(&node), r.imageLs(&node), r.imagePull(&node), r.imageTag(&node), r.imageRm(&node))
	_ = cmd.RegisterFlagCompletionFunc("node", r.completeNodes)
	return cmd
}

// imageArgs also refuses empty names, such as those of a variable that is not set.
func imageArgs(number cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "") {
			return usagef("the name of an image is empty")
		}
		return number(cmd, args)
	}
}

func (r *root) imageImport(node *string) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE…",
		Short: "Import OCI or Docker archives; - reads standard input",
		Long: `Import OCI or Docker archives; - reads standard input. An imported image stays
until "carob image rm" removes it, even if the disk is almost full, because no
registry could provide it again.`,
		Example: "  carob image import busybox.tar nginx.tar\n  docker save my-app:1 | carob image import -",
		Args:    someArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := r.importFile(cmd.Context(), *node, name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (r *root) importFile(ctx context.Context, node, name string) error {
	in := r.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("import: %w", err)
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return fmt.Errorf("import: %s is a directory", name)
		}
		in = f
	}
	return r.importImage(ctx, node, name, whileRunning(ctx, in), true)
}

// whileRunning is an archive whose reads end with ctx. A request over HTTP/1 that is cancelled waits for the end of the
// read of its body, which may be a pipe whose writer writes nothing. A file on a disk stays what it is: it can be sent
// again.
func whileRunning(ctx context.Context, archive io.Reader) io.Reader {
	if f, ok := archive.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			return archive
		}
	}
	read, write := io.Pipe()
	context.AfterFunc(ctx, func() { read.CloseWithError(ctx.Err()) })
	go func() { // until the writer ends, or the process
		_, err := io.Copy(write, archive)
		write.CloseWithError(err)
	}()
	return read
}

// importImage sends one archive; quiet prints nothing.
func (r *root) importImage(ctx context.Context, node, name string, archive io.Reader, verbose bool) error {
	req, err := r.imageRequest(ctx, "POST", node, "import")
	if err != nil {
		return err
	}
	done, err := r.followImage(ctx, req.SetHeader("Content-Type", "application/x-tar").Body(archive), verbose)
	if err != nil {
		return fmt.Errorf("import %s: %w", name, err)
	}
	if verbose {
		for _, n := range done {
			fmt.Fprintf(r.out, "imported %s\n", n)
		}
	}
	return nil
}

func (r *root) imagePull(node *string) *cobra.Command {
	return &cobra.Command{
		Use:     "pull IMAGE…",
		Short:   "Pull images from their registries",
		Example: "  carob image pull nginx\n  carob image pull ghcr.io/org/app:1.2",
		Args:    imageArgs(someArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, ref := range args {
				req, err := r.imageRequest(cmd.Context(), "POST", *node, "pull")
				if err != nil {
					return err
				}
				done, err := r.followImage(cmd.Context(), req.Param("ref", ref), true)
				if err != nil {
					return fmt.Errorf("pull %s: %w", ref, err)
				}
				for _, n := range done {
					fmt.Fprintf(r.out, "pulled %s\n", n)
				}
			}
			return nil
		},
	}
}

func (r *root) imageTag(node *string) *cobra.Command {
	return &cobra.Command{
		Use:               "tag IMAGE NAME",
		Short:             "Give an image another name",
		Example:           "  carob image tag nginx:1.27 localhost/web:1",
		Args:              imageArgs(exactArgs(2)),
		ValidArgsFunction: r.completeImages(node, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := r.imageRequest(cmd.Context(), "POST", *node, "tag")
			if err != nil {
				return err
			}
			done, err := r.followImage(cmd.Context(), req.Param("ref", args[0]).Param("name", args[1]), false)
			if err != nil {
				return fmt.Errorf("tag %s: %w", args[0], err)
			}
			fmt.Fprintf(r.out, "%s is also %s\n", args[0], strings.Join(done, ", "))
			return nil
		},
	}
}

// completeImages completes the names of the node's images for the first arguments.
func (r *root) completeImages(node *string, first int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= first {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := r.listImages(cmd.Context(), *node)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, im := range list.Images {
			names = append(names, im.Tags...)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (r *root) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := r.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := c.CoreV1().Nodes().List(cmd.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (r *root) imageRm(node *string) *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE…",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove images",
		Long: `Remove images. An image that has another name keeps it: only the given name is
removed. Containers that use a removed image keep running.`,
		Example: "  carob image rm nginx:1.27",
		Args:    imageArgs(someArgs),

		ValidArgsFunction: r.completeImages(node, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, ref := range args {
				req, err := r.imageRequest(cmd.Context(), "DELETE", *node)
				if err != nil {
					return err
				}
				if err := plain(req.Param("ref", ref).Do(cmd.Context()).Error()); err != nil {
					return fmt.Errorf("remove %s: %w", ref, err)
				}
				fmt.Fprintf(r.out, "removed %s\n", ref)
			}
			return nil
		},
	}
}

func (r *root) imageLs(node *string) *cobra.Command {
	var t table
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images",
		Example: "  carob image ls\n  carob image ls -o wide\n  carob image ls -o name | grep ^localhost/",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := r.listImages(cmd.Context(), *node)
			if err != nil {
				return err
			}
			var names []string
			for _, im := range list.Images {
				names = append(names, imageNames(im)...)
			}
			return t.print(r.out, list, names, func(w io.Writer) error { return printImages(w, &t, list) })
		},
	}
	addTableFlags(cmd, &t)
	return cmd
}

func (r *root) listImages(ctx context.Context, node string) (imageapi.List, error) {
	var list imageapi.List
	req, err := r.imageRequest(ctx, "GET", node)
	if err != nil {
		return list, err
	}
	res := req.Do(ctx)
	if err := plain(res.Error()); err != nil {
		return list, fmt.Errorf("list images: %w", err)
	}
	b, err := res.Raw()
	if err != nil {
		return list, fmt.Errorf("list images: %w", err)
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return list, fmt.Errorf("read list of images: %w", err)
	}
	return list, nil
}

// imageNames are the names of an image; its ID if it has none.
func imageNames(im imageapi.Image) []string {
	if len(im.Tags) == 0 {
		return []string{im.ID}
	}
	return im.Tags
}

func printImages(w io.Writer, t *table, list imageapi.List) error {
	headers, wide := []string{"IMAGE", "ID", "SIZE"}, t.wide()
	if wide {
		headers = append(headers, "PINNED", "DIGEST")
	}
	tw := t.rows(w, headers...)
	for _, im := range list.Images {
		names := im.Tags
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		id := strings.TrimPrefix(im.ID, "sha256:")
		if !wide && len(id) > 12 {
			id = id[:12]
		}
		for _, n := range names {
			fmt.Fprintf(tw, "%s\t%s\t%s", n, id, megabytes(im.Size))
			if wide {
				fmt.Fprintf(tw, "\t%t\t%s", im.Pinned, strings.Join(im.Digests, ","))
			}
			fmt.Fprintln(tw)
		}
	}
	return tw.Flush()
}

func megabytes(n uint64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func (r *root) imageRequest(ctx context.Context, verb, node string, path ...string) (*rest.Request, error) {
	c, err := r.client()
	if err != nil {
		return nil, err
	}
	path = append([]string{imageapi.Path}, path...)
	if r.standalone() {
		return c.CoreV1().RESTClient().Verb(verb).AbsPath(append([]string{"/"}, path...)...), nil
	}
	if node, err = oneNode(ctx, c, node); err != nil {
		return nil, err
	}
	return agentPath(c, verb, node, path...), nil
}

// endTime is how long a server may take to end a stream after its last message.
const endTime = time.Second

// followImage reads a progress stream to its end.
func (r *root) followImage(ctx context.Context, req *rest.Request, verbose bool) ([]string, error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	body, err := req.Stream(reading)
	if ctx.Err() != nil {
		return nil, ctx.Err() // the user has stopped it: whatever the server says to that
	}
	if err != nil {
		return nil, plain(err)
	}
	defer body.Close()
	for dec := json.NewDecoder(body); ; {
		var p imageapi.Progress
		if err := dec.Decode(&p); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("the node agent closed the stream: %w", err)
		}
		switch {
		case p.Error != "":
			return nil, errors.New(p.Error)
		case p.Done != nil:
			late := time.AfterFunc(endTime, stop)
			defer late.Stop()
			_, _ = io.Copy(io.Discard, body) // to its end: otherwise the API server reports a request that was aborted
			return p.Done, nil
		case verbose && p.Message != "":
			fmt.Fprintln(r.out, terminal.Printable(p.Message))
		}
	}
}

// plain returns the message of the node agent as an error, or why a file could not be read that was sent to it.
func plain(err error) error {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || answer.Status().Details == nil {
		return err
	}
	for _, c := range answer.Status().Details.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse && c.Message != "" && c.Message != "unknown" {
			return errors.New(strings.TrimSpace(c.Message))
		}
	}
	return err
}
