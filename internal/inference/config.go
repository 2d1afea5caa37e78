package inference

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"carob/internal/core/routing"
)

// ReadConfig reads an EndpointPickerConfig in YAML or JSON. Duplicate and unknown fields are errors.
func ReadConfig(text []byte) (*routing.Config, error) {
	if len(text) > routing.MaxConfig {
		return nil, fmt.Errorf("the configuration has %d bytes, at most %d", len(text), routing.MaxConfig)
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("read EndpointPickerConfig: %w", err)
	}
	return routing.ParseConfig(doc)
}
