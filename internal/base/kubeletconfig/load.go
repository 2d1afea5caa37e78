// Package kubeletconfig reads a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) and its drop-in files, and decides
// for each field whether carob honours it, rejects it, or ignores it with a warning. The command line drives it; it
// changes only the flags that it is given.
//
// Check, Apply, Reserved, and Effective depend on their arguments only; Load is the only function that reads files.
// They stay here and not in core, beside the table of fields, because they need the flags of base/instance and the
// tables of TLS ciphers of k8s.io/component-base; the command line checks a configuration before any part exists.
//
// Contract: docs/spec/storage-and-node.md, section S11.
package kubeletconfig

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// Configuration is the content of the files; a field that they omit has its zero value.
type Configuration = kubelet.KubeletConfiguration

const (
	kind = "KubeletConfiguration"
	// maxFile is the maximum size of a file in bytes.
	maxFile = 1 << 20
	// dropIn is the suffix of the names of drop-in files; other files in the directory are
	// ignored.
	dropIn = ".conf"
)

// Load reads a file and the drop-in files of a directory in lexical order of their paths, each as a JSON merge patch
// of what precedes it (S11.1). Either name may be empty. Unknown and duplicate fields are returned as warnings. Errors
// name the file.
func Load(file, dir string) (c *Configuration, warnings []string, err error) {
	merged := []byte("{}")
	if file != "" {
		if merged, warnings, err = read(file); err != nil {
			return nil, nil, err
		}
	}
	names, err := dropIns(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		patch, more, err := read(name)
		if err != nil {
			return nil, nil, err
		}
		warnings = append(warnings, more...)
		if merged, err = jsonpatch.MergePatch(merged, patch); err != nil {
			return nil, nil, fmt.Errorf("merge %s: %w", name, err)
		}
	}
	c = &Configuration{}
	if _, err := decode(merged, c); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", source(file, dir), err)
	}
	c.TypeMeta = metav1.TypeMeta{APIVersion: kubelet.SchemeGroupVersion.String(), Kind: kind}
	if file != "" {
		resolvePaths(c, filepath.Dir(file))
	}
	return c, warnings, nil
}

func source(file, dir string) string {
	if dir == "" {
		return file
	}
	return strings.TrimPrefix(file+" with "+dir, " with ")
}

// dropIns are the paths of the drop-in files below dir, in lexical order.
func dropIns(dir string) (names []string, err error) {
	if dir == "" {
		return nil, nil
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && filepath.Ext(path) == dropIn {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the drop-in files of %s: %w", dir, err)
	}
	return names, nil
}

// read returns a file as JSON, and its unknown and duplicate fields.
func read(name string) (text []byte, warnings []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("read a KubeletConfiguration: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	case len(raw) > maxFile:
		return nil, nil, fmt.Errorf("read %s: it is larger than %d bytes", name, maxFile)
	}
	var c Configuration
	if warnings, err = decode(raw, &c); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	for i := range warnings {
		warnings[i] = name + ": " + warnings[i]
	}
	if text, err = yaml.YAMLToJSON(raw); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, warnings, nil
}

// decode reads YAML or JSON. Another kind or version, or a value of the wrong type, is an error.
func decode(text []byte, c *Configuration) (warnings []string, err error) {
	var kindOf metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kindOf); err != nil {
		return nil, err
	}
	if group := kubelet.SchemeGroupVersion.String(); kindOf != (metav1.TypeMeta{}) &&
		(kindOf.APIVersion != group || kindOf.Kind != kind) {
		return nil, fmt.Errorf("expected %s of %s, found %q of %q", kind, group, kindOf.Kind, kindOf.APIVersion)
	}
	strict := yaml.UnmarshalStrict(text, c)
	if strict == nil {
		return nil, nil
	}
	*c = Configuration{}
	if err := yaml.Unmarshal(text, c); err != nil {
		return nil, err
	}
	return []string{strings.ReplaceAll(strict.Error(), "error unmarshaling JSON: while decoding JSON: ", "")}, nil
}

// resolvePaths makes relative paths of files relative to the directory of the configuration.
func resolvePaths(c *Configuration, dir string) {
	paths := []*string{&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile,
		c.ResolverConfig, &c.PodLogsDir}
	for _, p := range paths {
		if p != nil && *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}
