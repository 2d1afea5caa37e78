package admissionregistration

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// stored are the expressions that the stored object already has: they compiled when they were
// written, and a newer library may be stricter.
type stored map[string]bool

func (s stored) add(expression string) { s[expression] = true }

func (s stored) environment(expression string) environment.Type {
	if s[expression] {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// compiler compiles single expressions. Its environment costs milliseconds and a megabyte, so it is
// created for the first expression.
var compiler = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// compositor compiles the expressions of one policy, which may use the policy's variables.
func compositor() (*plugincel.CompositedCompiler, error) {
	return plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
}

// compile checks one expression; accessor has its text and the types that it may return.
func compile(c plugincel.Compiler, accessor plugincel.ExpressionAccessor, vars plugincel.OptionalVariableDeclarations,
	env environment.Type, at *field.Path) field.ErrorList {
	if r := c.CompileCELExpression(accessor, vars, env); r.Error != nil {
		return field.ErrorList{celError(r.Error, accessor.GetExpression(), at)}
	}
	return nil
}

func celError(err error, expression string, at *field.Path) *field.Error {
	if e, ok := errors.AsType[*cel.Error](err); ok {
		switch e.Type {
		case cel.ErrorTypeRequired:
			return field.Required(at, e.Detail)
		case cel.ErrorTypeInvalid:
			return field.Invalid(at, expression, e.Detail)
		}
	}
	return field.InternalError(at, fmt.Errorf("compile the expression: %w", err))
}

const maxConditions = 64

// matchConditions validates the conditions of a webhook or policy; params says whether they may use
// params.
func matchConditions(list []admissionregistrationv1.MatchCondition, params bool, s stored,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) > maxConditions {
		errs = append(errs, field.TooMany(at, len(list), maxConditions))
	}
	names := map[string]bool{}
	for i, c := range list {
		p := at.Index(i)
		if expression := strings.TrimSpace(c.Expression); expression == "" {
			errs = append(errs, field.Required(p.Child("expression"), ""))
		} else {
			errs = append(errs, compile(compiler(), &matchconditions.MatchCondition{Expression: expression},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true},
				s.environment(c.Expression), p.Child("expression"))...)
		}
		if c.Name == "" {
			errs = append(errs, field.Required(p.Child("name"), ""))
			continue
		}
		errs = append(errs, qualifiedName(c.Name, p.Child("name"))...)
		if names[c.Name] {
			errs = append(errs, field.Duplicate(p.Child("name"), c.Name))
		}
		names[c.Name] = true
	}
	return errs
}

// variables compiles a policy's variables into c, so that later expressions may use them.
func variables(c *plugincel.CompositedCompiler, list []admissionregistrationv1.Variable, params bool, s stored,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range list {
		p := at.Index(i)
		switch {
		case strings.TrimSpace(v.Name) == "":
			errs = append(errs, field.Required(p.Child("name"), "name is not specified"))
		case !isIdentifier(v.Name):
			errs = append(errs, field.Invalid(p.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(p.Child("expression"), "expression is not specified"))
			continue
		}
		accessor := &validating.Variable{Name: v.Name, Expression: v.Expression}
		r := c.CompileAndStoreVariable(accessor,
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, s.environment(v.Expression))
		if r.Error != nil {
			errs = append(errs, celError(r.Error, v.Expression, p.Child("expression")))
		}
	}
	return errs
}

// reserved are the reserved words of CEL.
const reserved = " true false null in as break const continue else for function if import let loop package namespace return var void while "

func isIdentifier(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != "" && !strings.Contains(reserved, " "+name+" ")
}
