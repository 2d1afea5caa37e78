package crds

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"

	"carob/internal/kinds/openapi"
)

var _ openapi.Source = (*Server)(nil)

// V3 implements openapi.Source: one document for each served group version.
func (s *Server) V3() map[string]openapi.Document {
	out := map[string]openapi.Document{}
	byVersion := map[schema.GroupVersion][]*apiextensionsv1.CustomResourceDefinition{}
	for _, d := range s.established() {
		for _, v := range d.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}
				byVersion[gv] = append(byVersion[gv], d)
			}
		}
	}
	for gv, list := range byVersion {
		out["apis/"+gv.String()] = openapi.Document{Hash: hash(list),
			JSON: func() ([]byte, error) { return documentV3(gv.Version, list) }}
	}
	return out
}

// V2 implements openapi.Source.
func (s *Server) V2() []openapi.Document {
	var out []openapi.Document
	for _, d := range s.established() {
		for _, v := range d.Spec.Versions {
			if v.Served {
				out = append(out,
					openapi.Document{Hash: hash([]*apiextensionsv1.CustomResourceDefinition{d}) + v.Name,
						JSON: func() ([]byte, error) {
							doc, err := builder.BuildOpenAPIV2(d, v.Name,
								builder.Options{V2: true, IncludeSelectableFields: true})
							if err != nil {
								return nil, fmt.Errorf("describe %s in version %s: %w", d.Name, v.Name, err)
							}
							doc.Definitions = handler.PruneDefaults(doc.Definitions)
							return doc.MarshalJSON()
						}})
			}
		}
	}
	return out
}

// established returns the definitions that are served, by name.
func (s *Server) established() []*apiextensionsv1.CustomResourceDefinition {
	select {
	case <-s.synced:
	default:
		return nil
	}
	if s.err != nil {
		return nil
	}
	all, err := s.lister.List(labels.Everything())
	if err != nil {
		return nil // a lister of an informer never fails
	}
	all = slices.DeleteFunc(all, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established)
	})
	slices.SortFunc(all,
		func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// ResourceOf returns the resource of a custom kind, "" when there is none.
func (s *Server) ResourceOf(kind schema.GroupVersionKind) string {
	for _, d := range s.established() {
		if d.Spec.Group == kind.Group && d.Status.AcceptedNames.Kind == kind.Kind {
			return d.Status.AcceptedNames.Plural
		}
	}
	return ""
}

// hash identifies a state of definitions without building a document of them.
func hash(list []*apiextensionsv1.CustomResourceDefinition) string {
	h := sha256.New()
	for _, d := range list {
		fmt.Fprintln(h, d.UID, d.Generation, d.Status.AcceptedNames)
	}
	return fmt.Sprintf("%X", h.Sum(nil)[:16])
}

func documentV3(version string, list []*apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	var parts []*spec3.OpenAPI
	for _, d := range list {
		doc, err := builder.BuildOpenAPIV3(d, version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			return nil, fmt.Errorf("describe %s in version %s: %w", d.Name, version, err)
		}
		parts = append(parts, doc)
	}
	doc, err := builder.MergeSpecsV3(parts...)
	if err != nil {
		return nil, fmt.Errorf("merge the documents of a group: %w", err)
	}
	return json.Marshal(doc)
}
