package images

import (
	"archive/tar"
	"bytes"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzHosts parses hosts.toml as an administrator may have written it: the result is an error, or a list of hosts, none
// of which gets credentials of another.
func FuzzHosts(f *testing.F) {
	for _, text := range []string{
		"", "server = \"https://registry-1.docker.io\"\n[host.\"http://mirror:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		"server = \"http://h\"\nskip_verify = true\nca = [\"/a.pem\", \"b.pem\"]\nclient = [[\"c.pem\", \"k.pem\"], [\"both.pem\"]]\n",
		"[host.\"https://a/v2/x\"]\noverride_path = true\n[host.\"https://a/v2/x\".header]\nx-one = [\"1\", \"2\"]\nx-two = \"3\"\n",
		"server = \"registry.example\"\ndial_timeout = \"1s\"\ncapabilities = [\"push\"]\n[host.\"unix:///x\"]\n",
		"host = 1", "[host]\n[host.a]\nca = {}\n", "server = \"http://[::1]:99999\"",
	} {
		f.Add(text)
	}
	named, err := reference.ParseNormalizedNamed("registry.example/team/app")
	if err != nil {
		f.Fatal(err)
	}
	const token = "token-of-the-registry"
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "dev") || strings.Contains(text, "proc") {
			return // a key that is read from there never ends
		}
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "registry.example"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &Store{cfg: Config{RegistryConfig: dir}}
		hosts, err := s.hosts(t.Context(), named, &cri.AuthConfig{RegistryToken: token})("registry.example")
		if err != nil {
			return
		}
		for _, h := range hosts {
			u := url.URL{Scheme: h.Scheme, Host: h.Host, Path: h.Path}
			if h.Scheme != "http" && h.Scheme != "https" || h.Host == "" {
				t.Errorf("a host that can't be asked: %s of %q", u.String(), text)
			}
			if shown := strings.Contains(h.Header.Get("Authorization"), token); shown && h.Host != "registry.example" {
				t.Errorf("%s is shown the token of registry.example: %q", h.Host, text)
			}
			if b, ok := h.Client.Transport.(boundedAnswers); ok && !strings.Contains(text, "skip_verify") {
				if tr, ok := b.RoundTripper.(*http.Transport); ok && tr.TLSClientConfig != nil &&
					tr.TLSClientConfig.InsecureSkipVerify {
					t.Errorf("%s is not verified: %q", h.Host, text)
				}
			}
		}
	})
}

// archives is a store that imports arbitrary archives.
type archives struct {
	*Store
	outside string // the directory around it
}

func newArchives(f *testing.F) archives {
	f.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "carob-fuzz-") // each import is synced to disk
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	return archives{openStore(f, Config{Root: filepath.Join(dir, "store")}), dir}
}

// take imports an archive: either it is rejected as the user's mistake and leaves nothing, or its
// images are present and can be removed. Nothing is written outside of the store.
func (a archives) take(t *testing.T, archive []byte) {
	t.Helper()
	names, err := a.Import(t.Context(), bytes.NewReader(archive), nil)
	if c := status.Code(err); err != nil && c != codes.InvalidArgument && c != codes.ResourceExhausted {
		t.Errorf("%v: %v", c, err)
	}
	for _, n := range names {
		got, err := a.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: n}, Verbose: true})
		if err != nil || got.Image == nil {
			t.Errorf("%q was imported: %v, %v", n, got, err)
			continue
		}
		if _, err := a.RemoveImage(t.Context(),
			&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: got.Image.Id}}); err != nil {
			t.Errorf("remove %q: %v", n, err)
		}
	}
	left, err := a.ListImages(t.Context(), &cri.ListImagesRequest{})
	if err != nil || len(left.Images) > 0 {
		t.Errorf("left: %v, %v", left.GetImages(), err)
	}
	if found, err := os.ReadDir(a.outside); err != nil || len(found) != 1 {
		t.Errorf("outside: %v, %v", found, err)
	}
}

// FuzzArchives imports streams of bytes.
func FuzzArchives(f *testing.F) {
	im := imageOf(f, "", map[string]string{"one": "1", "d/": ""})
	oci := ociArchive(f, im, "registry.example/team/app:v1")
	for _, b := range [][]byte{nil, oci, dockerArchive(f, im, "app:v1"), oci[:len(oci)/2], []byte("\x1f\x8b\x08"),
		[]byte("\x28\xb5\x2f\xfd\x00")} {
		f.Add(b)
	}
	a := newArchives(f)
	f.Fuzz(func(t *testing.T, b []byte) { a.take(t, b) })
}

// FuzzImages imports archives with arbitrary documents and correct digests: {layer}, {config}, and
// {manifest} in a text become the digest of that file, with a plus its size.
func FuzzImages(f *testing.F) {
	const (
		layerType = "application/vnd.oci.image.layer.v1.tar"
		types     = `"mediaType":"application/vnd.oci.image.`
		manifest  = `{"schemaVersion":2,` + types + `manifest.v1+json","config":{` + types +
			`config.v1+json","digest":"{config}","size":{config+}},"layers":[{"mediaType":"` + layerType +
			`","digest":"{layer}","size":{layer+}}]}`
		index = `{"schemaVersion":2,"manifests":[{` + types +
			`manifest.v1+json","digest":"{manifest}","size":{manifest+},"annotations":{"io.containerd.image.name":"registry.example/app:v1"}}]}`
		docker = `[{"Config":"config.json","RepoTags":["app:v1"],"Layers":["layer.tar"]}]`
	)
	config := `{"architecture":"` + runtime.GOARCH +
		`","os":"linux","config":{"User":"1:1","Cmd":["/bin/true"]},"rootfs":{"type":"layers","diff_ids":["{layer}"]}}`
	layer := archiveOf(file("a", "1"), link(tar.TypeSymlink, "d/l", "../../x"))
	f.Add(index, manifest, config, layer, "")
	f.Add("", "", config, layer, docker)
	f.Add(`{"schemaVersion":2,"manifests":[{`+types+`index.v1+json","digest":"{manifest}","size":{manifest+}}]}`, index,
		config, layer, "")
	f.Add("", "", config, layer,
		`[{"Config":"../config.json","RepoTags":[":","a b"],"Layers":["../layer.tar","layer.tar"]},{}]`)
	f.Add(`{"manifests":[{"digest":"{manifest}","size":-1},{"digest":"sha256:..","size":1},{}]}`,
		`{"layers":[{"digest":"{layer}"}],"config":{"digest":"{layer}"}}`, `{"rootfs":{"diff_ids":["x"]}}`, layer, "")
	a := newArchives(f)
	f.Fuzz(func(t *testing.T, index, manifest, config string, layer []byte, docker string) {
		known := []string{}
		fill := func(name, text string) string {
			text = strings.NewReplacer(known...).Replace(text)
			known = append(known, "{"+name+"}", digest.FromString(text).String(), "{"+name+"+}",
				strconv.Itoa(len(text)))
			return text
		}
		blobs := []string{fill("layer", string(layer)), fill("config", config), fill("manifest", manifest)}
		index = fill("index", index)
		var entries []entry
		add := func(name, text string) { entries = append(entries, file(name, text)) }
		for _, b := range blobs {
			add("blobs/sha256/"+digest.FromString(b).Encoded(), b)
		}
		if docker != "" {
			add("layer.tar", blobs[0])
			add("config.json", blobs[1])
			add("manifest.json", docker)
		}
		if index != "" {
			add("oci-layout", `{"imageLayoutVersion":"1.0.0"}`)
			add("index.json", index)
		}
		a.take(t, archiveOf(entries...))
	})
}
