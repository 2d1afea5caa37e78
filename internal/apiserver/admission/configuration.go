package admission

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"

	"carob/internal/base/errkind"
)

// Configuration is the content of an AdmissionConfiguration by plugin name.
type Configuration map[string][]byte

// configurable are the plugins with a configuration.
var configurable = []string{"MutatingAdmissionWebhook", "PodSecurity", "ResourceQuota", "ValidatingAdmissionWebhook"}

// LoadConfiguration reads an AdmissionConfiguration (apiserver.config.k8s.io); the result is empty
// if file is "". A section for a plugin that would ignore it is an error (errkind.Invalid):
// the user relies on it.
func LoadConfiguration(file string) (Configuration, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the admission configuration: %w", err)
	}
	s := runtime.NewScheme()
	install.Install(s)
	o, err := runtime.Decode(serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDecoder(), content)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "read the admission configuration %s: %w", file, err)
	}
	config, ok := o.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, errkind.Errorf(errkind.Invalid, "read the admission configuration %s: it is a %T", file, o)
	}
	out := Configuration{}
	for _, p := range config.Plugins {
		switch _, twice := out[p.Name]; {
		case !slices.Contains(configurable, p.Name):
			return nil, errkind.Errorf(errkind.Invalid,
				"read the admission configuration %s: plugin %q cannot be configured, only %s can", file, p.Name,
				strings.Join(configurable, ", "))
		case twice:
			return nil, errkind.Errorf(errkind.Invalid, "read the admission configuration %s: plugin %q is there twice",
				file, p.Name)
		case p.Configuration != nil:
			out[p.Name] = p.Configuration.Raw
		case p.Path != "":
			path := p.Path
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(file), path)
			}
			if out[p.Name], err = os.ReadFile(path); err != nil {
				return nil, fmt.Errorf("read the configuration of admission plugin %s: %w", p.Name, err)
			}
		}
	}
	return out, nil
}

// For returns the configuration of a plugin; nil if there is none.
func (c Configuration) For(plugin string) io.Reader {
	if content, ok := c[plugin]; ok {
		return bytes.NewReader(content)
	}
	return nil
}
