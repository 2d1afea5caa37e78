package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/kinds/mergeschema"
	"carob/internal/kinds/scheme"
)

// Manage sets the defaults of obj, and records manager as who wrote what differs from live (an empty object before a
// create). Requests do that before they reach the store; what the server writes without a request needs it.
func (s *Store) Manage(live, obj runtime.Object, manager string) (runtime.Object, error) {
	s.builder.once.Do(func() { s.builder.types = mergeschema.NewTypeConverter(s.builder.Set.External) })
	known, kind := s.builder.Set.Scheme, s.Resource.Kind
	m, err := managedfields.NewDefaultFieldManager(s.builder.types, scheme.SharingConvertor(known), known, known,
		kind, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}, "",
		fieldpath.NewExcludeFilterSetMap(s.GetResetFields()))
	if err != nil {
		return nil, fmt.Errorf("manage the fields of %v: %w", kind, err)
	}
	known.Default(obj)
	return m.UpdateNoErrors(live, obj, manager), nil
}
