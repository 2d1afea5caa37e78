package crds

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"carob/internal/kinds/registry"
)

// The library compares each error of a custom resource with all others, at each level of the object, and answers with
// all of them: one request with a list of a million numbers where texts are expected would keep a processor busy for
// hours, and take gigabytes; so would a small object by a schema with tens of thousands of branches (allOf). So objects
// that may have many errors are validated piece by piece before, until there are too many.

// mostAtOnce is about how many errors the library compares with each other: those of an object that is not looked at,
// or of a piece of one.
const mostAtOnce = 4000

// errorLimit refuses custom resources with too many errors, after all plugins that change objects.
type errorLimit struct {
	admission.Interface
	definition func(name string) (*apiextensionsv1.CustomResourceDefinition, error)

	mu      sync.Mutex
	schemas map[types.UID]*schemas
}

// schemas are those of one generation of a definition.
type schemas struct {
	generation int64
	versions   map[string]*pieces // by version
}

// pieces is the schema of a version.
type pieces struct {
	schema     *spec.Schema
	structural *structuralschema.Structural
	size       int  // of a piece, in values, that has at most about mostAtOnce errors
	ownStatus  bool // the status is written and validated separately
}

func newErrorLimit(chain admission.Interface,
	definition func(name string) (*apiextensionsv1.CustomResourceDefinition, error)) *errorLimit {
	return &errorLimit{Interface: chain, definition: definition, schemas: map[types.UID]*schemas{}}
}

// forget forgets a definition that is gone.
func (l *errorLimit) forget(definition types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.schemas, definition)
}

// Validate implements admission.ValidationInterface.
func (l *errorLimit) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := l.Interface.(admission.ValidationInterface); ok && l.Interface.Handles(a.GetOperation()) {
		return v.Validate(ctx, a, o)
	}
	return nil
}

// Handles implements admission.Interface.
func (l *errorLimit) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update || l.Interface.Handles(op)
}

// Admit implements admission.MutationInterface.
func (l *errorLimit) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m, ok := l.Interface.(admission.MutationInterface); ok && l.Interface.Handles(a.GetOperation()) {
		if err := m.Admit(ctx, a, o); err != nil {
			return err
		}
	}
	sub, create := a.GetSubresource(), a.GetOperation() == admission.Create
	object, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || sub != "" && sub != "status" || !create && a.GetOperation() != admission.Update {
		return nil
	}
	p, err := l.of(a.GetResource().GroupResource().String(), a.GetKind().Version)
	if err != nil || p == nil || !larger(object.Object, p.size) {
		return err
	}
	errs, hidden := p.validate(ctx, object.Object, sub)
	switch {
	case ctx.Err() != nil: // the library would not notice, and begin from the start
		return apierrors.NewTimeoutError("the validation of the object takes too long", 0)
	case hidden:
		return apierrors.NewInvalid(a.GetKind().GroupKind(), object.GetName(), field.ErrorList{field.InternalError(nil,
			fmt.Errorf("the alternatives (anyOf, oneOf, not) of its schema have too many errors to compare"))})
	case len(errs) <= registry.MaxErrors:
		return nil
	}
	// What was stored before its definition changed may stay as it is.
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && !create {
		if before, _ := p.validate(ctx, old.Object, sub); len(before) > registry.MaxErrors {
			return nil
		}
	}
	shown := append(registry.Bounded(errs[:registry.MaxErrors]),
		field.InternalError(nil, fmt.Errorf("more errors are not shown")))
	return apierrors.NewInvalid(a.GetKind().GroupKind(), object.GetName(), shown)
}

// of returns the schema of a version of a definition; nil if it has none.
func (l *errorLimit) of(definition, version string) (*pieces, error) {
	d, err := l.definition(definition)
	if err != nil {
		return nil, nil //nolint:nilerr // the library reports it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.schemas[d.UID]
	if s == nil || s.generation != d.Generation {
		s = &schemas{generation: d.Generation, versions: map[string]*pieces{}}
		l.schemas[d.UID] = s
	}
	if p, ok := s.versions[version]; ok {
		return p, nil
	}
	p, err := piecesOf(d, version)
	if err != nil {
		return nil, fmt.Errorf("read the schema of %s in version %s: %w", definition, version, err)
	}
	s.versions[version] = p
	return p, nil
}

func piecesOf(d *apiextensionsv1.CustomResourceDefinition, version string) (*pieces, error) {
	for _, v := range d.Spec.Versions {
		if v.Name != version || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
			v.Schema.OpenAPIV3Schema, internal, nil); err != nil {
			return nil, err
		}
		_, schema, err := validation.NewSchemaValidator(internal)
		if err != nil {
			return nil, err
		}
		structural, err := structuralschema.NewStructural(internal)
		if err != nil {
			return nil, err
		}
		return &pieces{schema: schema, structural: structural,
			size:      max(mostAtOnce/mostErrorsOf(schema), 1),
			ownStatus: v.Subresources != nil && v.Subresources.Status != nil}, nil
	}
	return nil, nil
}

// mostErrorsOf returns how many errors one value has at most, by a schema or one inside of it.
func mostErrorsOf(s *spec.Schema) int {
	own, most := ownErrors(s), 1
	inside := func(s *spec.Schema) { most = max(most, mostErrorsOf(s)) }
	for _, p := range s.Properties {
		inside(&p)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		inside(s.AdditionalProperties.Schema)
	}
	if s.Items != nil && s.Items.Schema != nil {
		inside(s.Items.Schema)
	}
	for _, list := range [][]spec.Schema{s.AllOf, s.AnyOf, s.OneOf, notOf(s)} {
		for i := range list {
			inside(&list[i])
		}
	}
	return max(own, most)
}

// ownErrors returns how many errors a value has at most, without what is inside of it.
func ownErrors(s *spec.Schema) int {
	n := 1 + len(s.Required) // a wrong type
	for _, checked := range []bool{len(s.Enum) > 0, s.Pattern != "", s.Format != "", s.MultipleOf != nil, s.Not != nil,
		s.MaxLength != nil || s.MinLength != nil, s.Maximum != nil || s.Minimum != nil,
		s.MaxItems != nil || s.MinItems != nil, s.MaxProperties != nil || s.MinProperties != nil} {
		if checked {
			n++
		}
	}
	for _, list := range [][]spec.Schema{s.AllOf, s.AnyOf, s.OneOf, notOf(s)} {
		for i := range list {
			n += ownErrors(&list[i])
		}
	}
	return n
}

// notOf is what a value must not match.
func notOf(s *spec.Schema) []spec.Schema {
	if s.Not == nil {
		return nil
	}
	return []spec.Schema{*s.Not}
}

// validate returns the errors of an object, or of its status, until there are too many. hidden means that alternatives
// have too many, which need not be errors of the object.
func (p *pieces) validate(ctx context.Context, object map[string]any, subresource string) (errs field.ErrorList,
	hidden bool) {
	v := &validated{ctx: ctx, size: p.size, most: registry.MaxErrors, compared: new(int)}
	if subresource == "status" {
		if s, ok := p.schema.Properties["status"]; ok {
			v.look(&s, "status", object["status"])
		}
		return v.list(), v.hidden()
	}
	if _, ok := object["status"]; ok && p.ownStatus {
		rest := make(map[string]any, len(object)) // the library validates the stored status again
		for k, value := range object {
			if k != "status" {
				rest[k] = value
			}
		}
		object = rest
	}
	v.look(p.schema, "", object)
	errs = v.list()
	if len(errs) <= registry.MaxErrors && !v.hidden() {
		errs = append(errs, objectmeta.Validate(ctx, nil, object, p.structural, false)...)
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, p.structural, object)...)
	}
	return errs, v.hidden()
}

// validated are the errors of the pieces of an object.
type validated struct {
	ctx    context.Context
	size   int // of a piece
	most   int // errors; no more are looked for
	result validate.Result
	// compared is about how many errors of alternatives the library compares with each other, in the whole object.
	compared *int
}

func (v *validated) hidden() bool { return *v.compared > mostAtOnce*mostAtOnce }

func (v *validated) ended() bool {
	return len(v.result.Errors) > v.most || v.hidden() || v.ctx.Err() != nil
}

// look validates a value: as a whole if it is small, else what is inside of it.
func (v *validated) look(s *spec.Schema, path string, value any) {
	if v.ended() {
		return
	}
	if !larger(value, v.size) && (v.size > 1 || ownErrors(s) <= mostAtOnce) {
		v.result.Errors = append(v.result.Errors,
			validate.NewSchemaValidator(s, nil, path, strfmt.Default).Validate(value).Errors...)
		return
	}
	v.own(s, path, value)
	for i := range s.AllOf {
		v.look(&s.AllOf[i], path, value)
	}
	for _, list := range [][]spec.Schema{s.AnyOf, s.OneOf, notOf(s)} {
		for i := range list {
			v.lookAt(&list[i], path, value)
		}
	}
	switch value := value.(type) {
	case []any:
		if s.Items == nil || s.Items.Schema == nil {
			return
		}
		for i := range value {
			if v.ended() {
				return
			}
			v.look(s.Items.Schema, fmt.Sprintf("%s[%d]", path, i), value[i])
		}
	case map[string]any:
		for name, inside := range value {
			sub := name
			if path != "" {
				sub = path + "." + name
			}
			if p, ok := s.Properties[name]; ok {
				v.look(&p, sub, inside)
			} else if a := s.AdditionalProperties; a != nil && a.Schema != nil {
				v.look(a.Schema, sub, inside)
			}
		}
	}
}

// own validates a value without what is inside of it, and without combined schemas.
func (v *validated) own(s *spec.Schema, path string, value any) {
	alone := *s
	alone.AllOf, alone.AnyOf, alone.OneOf, alone.Not = nil, nil, nil, nil
	alone.Properties, alone.AdditionalProperties, alone.Items = nil, nil, nil
	if fields, ok := value.(map[string]any); ok {
		alone.Required = nil
		for _, name := range s.Required {
			if _, there := fields[name]; !there && len(alone.Required) <= v.most {
				alone.Required = append(alone.Required, name)
			}
		}
	}
	v.result.Errors = append(v.result.Errors,
		validate.NewSchemaValidator(&alone, nil, path, strfmt.Default).Validate(value).Errors...)
}

// lookAt counts the errors of an alternative: the library compares them whether or not the value matches another one.
func (v *validated) lookAt(s *spec.Schema, path string, value any) {
	if v.ended() {
		return
	}
	one := &validated{ctx: v.ctx, size: v.size, most: mostAtOnce, compared: v.compared}
	one.look(s, path, value)
	*v.compared += len(one.result.Errors) * len(one.result.Errors)
}

// list returns the errors as the library shows them.
func (v *validated) list() field.ErrorList { return validation.ValidateCustomResource(nil, nil, v) }

// Validate implements validation.SchemaCreateValidator.
func (v *validated) Validate(any, ...validation.ValidationOption) *validate.Result { return &v.result }

// larger reports whether a value consists of more than n values.
func larger(value any, n int) bool { return left(value, n) < 0 }

// left returns what is left of n after the values of which a value consists; it stops when nothing is left.
func left(value any, n int) int {
	n--
	switch value := value.(type) {
	case []any:
		for i := 0; i < len(value) && n >= 0; i++ {
			n = left(value[i], n)
		}
	case map[string]any:
		for _, inside := range value {
			if n = left(inside, n); n < 0 {
				break
			}
		}
	}
	return n
}
