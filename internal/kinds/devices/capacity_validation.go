package devices

import (
	"fmt"
	"math"
	"math/big"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateRequestPolicy validates how shares of a capacity are allocated: the possible amounts, and
// that the default is one of them.
func validateRequestPolicy(capacity resource.Quantity, p *resourcev1.CapacityRequestPolicy,
	at *field.Path) field.ErrorList {
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		return field.ErrorList{field.Forbidden(at,
			`exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(p.ValidValues) > 0 && p.Default == nil:
		return field.ErrorList{field.Required(at.Child("default"), "required when validValues is defined")}
	case len(p.ValidValues) > 0:
		return validateCapacityOptions(capacity, *p.Default, p.ValidValues, at.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		return field.ErrorList{field.Required(at.Child("default"), "required when validRange is defined")}
	case p.ValidRange != nil:
		r := capacityRange{capacity: capacity, usual: *p.Default, CapacityRequestPolicyRange: *p.ValidRange,
			at: at.Child("validRange")}
		return r.check()
	}
	return nil
}

func validateCapacityOptions(capacity, usual resource.Quantity, options []resource.Quantity,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := 1; i < len(options); i++ {
		if options[i-1].Cmp(options[i]) > 0 {
			errs = append(errs,
				field.Invalid(at.Index(i), options[i].String(), "values must be sorted in ascending order"))
		}
	}
	const mostOptions = 10
	found := false
	if n := len(options); n > mostOptions {
		errs = append(errs, field.TooMany(at, n, mostOptions))
	} else {
		seen := sets.New[string]()
		for i, o := range options {
			if o.Cmp(capacity) > 0 {
				errs = append(errs,
					field.Invalid(at.Index(i), o.String(),
						fmt.Sprintf("option is larger than capacity value: %s", capacity.String())))
			}
			found = found || o.Cmp(usual) == 0
			key := o.AsDec().String()
			if seen.Has(key) {
				errs = append(errs, field.Duplicate(at.Index(i), key))
			}
			seen.Insert(key)
		}
	}
	if !found {
		errs = append(errs, field.Invalid(at, usual.String(),
			"default value is not valid according to the requestPolicy"))
	}
	return errs
}

// capacityRange is a range of amounts with its step.
type capacityRange struct {
	resourcev1.CapacityRequestPolicyRange
	capacity, usual resource.Quantity
	at              *field.Path
}

// namedAmount is one of the amounts that define a range.
type namedAmount struct {
	name string
	*resource.Quantity
}

func (r *capacityRange) amounts() []namedAmount {
	return []namedAmount{{"default", &r.usual}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}}
}

func (r *capacityRange) check() field.ErrorList {
	if r.Min == nil {
		return field.ErrorList{field.Required(r.at.Child("min"), "required when validRange is defined")}
	}
	var errs field.ErrorList
	invalid := func(name string, value *resource.Quantity, format string, other *resource.Quantity) {
		errs = append(errs, field.Invalid(r.at.Child(name), value.String(), fmt.Sprintf(format, other.String())))
	}
	if r.Min.Cmp(r.capacity) > 0 {
		invalid("min", r.Min, "min is larger than capacity value: %s", &r.capacity)
	}
	if r.usual.Cmp(*r.Min) < 0 {
		invalid("default", &r.usual, "default is less than min: %s", r.Min)
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			invalid("max", r.Min, "min is larger than max: %s", r.Max)
		}
		if r.Max.Cmp(r.capacity) > 0 {
			invalid("max", r.Max, "max is larger than capacity value: %s", &r.capacity)
		}
		if r.usual.Cmp(*r.Max) > 0 {
			invalid("default", &r.usual, "default is more than max: %s", r.Max)
		}
	}
	fractional := r.fractional()
	if fractional {
		if uncountable := r.uncountable(); len(uncountable) > 0 {
			return append(errs, uncountable...)
		}
	}
	if r.Step == nil {
		return errs
	}
	if r.Step.Sign() <= 0 {
		return append(errs, field.Invalid(r.at.Child("step"), r.Step.String(), "must be greater than zero"))
	}
	second := r.Min.DeepCopy()
	second.Add(*r.Step)
	if second.Cmp(r.capacity) > 0 {
		errs = append(errs, field.Invalid(r.at.Child("step"), r.Step.String(),
			fmt.Sprintf("one step %s is larger than capacity value: %s", second.String(), r.capacity.String())))
	}
	if !fractional {
		if huge := r.huge(); len(huge) > 0 {
			return append(errs, huge...)
		}
	}
	count := (*resource.Quantity).Value
	if fractional {
		count = (*resource.Quantity).MilliValue
	}
	for _, end := range []*resource.Quantity{&r.usual, r.Max} {
		if end != nil && (count(end)-count(r.Min))%count(r.Step) != 0 {
			errs = append(errs,
				field.Invalid(r.at.Child("step"), end.String(),
					fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(),
						r.Min.String())))
		}
	}
	return errs
}

// fractional reports whether one of the amounts is not a whole number, so that steps are counted in
// thousandths.
func (r *capacityRange) fractional() bool {
	for _, a := range r.amounts() {
		if a.Quantity != nil && !whole(a.DeepCopy()) {
			return true
		}
	}
	return false
}

func whole(q resource.Quantity) bool {
	d := q.AsDec()
	if d.Scale() <= 0 {
		return true
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.Scale())), nil)
	return new(big.Int).Rem(d.UnscaledBig(), unit).Sign() == 0
}

// uncountable finds amounts that are not a whole number of thousandths.
func (r *capacityRange) uncountable() (errs field.ErrorList) {
	for _, a := range r.amounts() {
		if a.Quantity != nil && a.Cmp(*resource.NewMilliQuantity(a.MilliValue(), a.Format)) != 0 {
			errs = append(errs,
				field.Invalid(r.at.Child(a.name), a.String(), "value cannot be represented as a milli value"))
		}
	}
	return errs
}

// huge finds amounts whose steps cannot be counted in 64 bits.
func (r *capacityRange) huge() (errs field.ErrorList) {
	for _, a := range r.amounts() {
		switch {
		case a.Quantity == nil:
		case a.Sign() < 0:
			errs = append(errs, field.Invalid(r.at.Child(a.name), a.String(), apivalidation.IsNegativeErrorMsg))
		case a.CmpInt64(math.MaxInt64) > 0:
			errs = append(errs,
				field.Invalid(r.at.Child(a.name), a.String(),
					fmt.Sprintf("must not be larger than %d", int64(math.MaxInt64))))
		}
	}
	return errs
}
