package gatewayplan

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// granted reports whether an object of the Gateway API may refer to one of another namespace (ReferenceGrant).
// References within a namespace need no grant.
func (p *planner) granted(fromKind gatewayv1.Kind, from string, toGroup gatewayv1.Group, toKind gatewayv1.Kind,
	to Name) bool {
	if from == to.Namespace {
		return true
	}
	return slices.ContainsFunc(p.Grants, func(g *gatewayv1.ReferenceGrant) bool {
		return g.Namespace == to.Namespace && slices.ContainsFunc(g.Spec.From,
			func(f gatewayv1.ReferenceGrantFrom) bool {
				return f.Group == group && f.Kind == fromKind && string(f.Namespace) == from
			}) && slices.ContainsFunc(g.Spec.To, func(t gatewayv1.ReferenceGrantTo) bool {
			return t.Group == toGroup && t.Kind == toKind && (t.Name == nil || *t.Name == "" ||
				string(*t.Name) == to.Name)
		})
	})
}

func or[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}
