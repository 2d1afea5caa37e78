package admissionregistration

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/table"
)

var webhookTable = table.Kind{
	Columns: []table.Column{table.NameColumn,
		{Name: "Webhooks", Type: "integer", Description: "Number of webhooks in this configuration"}, table.AgeColumn},
	Row: func(o runtime.Object, now time.Time) []any {
		switch c := o.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			return []any{c.Name, int64(len(c.Webhooks)), table.Age(c.CreationTimestamp, now)}
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			return []any{c.Name, int64(len(c.Webhooks)), table.Age(c.CreationTimestamp, now)}
		}
		return nil
	},
}

// policyTable is the table of policies; rules is the kind's name for its rules.
func policyTable(rules string) table.Kind {
	return table.Kind{
		Columns: []table.Column{table.NameColumn,
			{Name: rules, Type: "integer", Description: "Number of rules in this policy"},
			{Name: "ParamKind", Description: "Kind of the objects that parameterize this policy"}, table.AgeColumn},
		Row: func(o runtime.Object, now time.Time) []any {
			switch p := o.(type) {
			case *admissionregistrationv1.ValidatingAdmissionPolicy:
				return []any{p.Name, int64(len(p.Spec.Validations)), kindCell(p.Spec.ParamKind),
					table.Age(p.CreationTimestamp, now)}
			case *admissionregistrationv1.MutatingAdmissionPolicy:
				return []any{p.Name, int64(len(p.Spec.Mutations)), kindCell(p.Spec.ParamKind),
					table.Age(p.CreationTimestamp, now)}
			}
			return nil
		},
	}
}

var bindingTable = table.Kind{
	Columns: []table.Column{table.NameColumn, {Name: "PolicyName", Description: "The policy that this binds"},
		{Name: "ParamRef", Description: "The objects that parameterize the policy here"}, table.AgeColumn},
	Row: func(o runtime.Object, now time.Time) []any {
		switch b := o.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			return []any{b.Name, b.Spec.PolicyName, refCell(b.Spec.ParamRef), table.Age(b.CreationTimestamp, now)}
		case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
			return []any{b.Name, b.Spec.PolicyName, refCell(b.Spec.ParamRef), table.Age(b.CreationTimestamp, now)}
		}
		return nil
	},
}

const unset = "<unset>"

func kindCell(k *admissionregistrationv1.ParamKind) string {
	if k == nil {
		return unset
	}
	return k.APIVersion + "/" + k.Kind
}

func refCell(r *admissionregistrationv1.ParamRef) string {
	switch {
	case r == nil:
		return unset
	case r.Name != "" && r.Namespace != "":
		return r.Namespace + "/" + r.Name
	case r.Name != "":
		return "*/" + r.Name
	case r.Selector != nil:
		return r.Selector.String()
	}
	return unset
}
