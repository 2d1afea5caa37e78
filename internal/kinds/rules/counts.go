package rules

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// StatusPath is the path of .status.
var StatusPath = field.NewPath("status")

// Number is a number in a status, by the name of its field.
type Number struct {
	name  string
	value int64
}

// Count returns the number in status.name.
func Count(name string, value int64) Number { return Number{name, value} }

// Optional returns the number in status.name, zero if it is not set.
func Optional[T int32 | int64](name string, v *T) Number {
	if v == nil {
		return Count(name, 0)
	}
	return Count(name, int64(*v))
}

// Counts validates numbers that cannot be negative.
func Counts(all ...Number) field.ErrorList {
	var errs field.ErrorList
	for _, c := range all {
		errs = append(errs, apivalidation.ValidateNonnegativeField(c.value, StatusPath.Child(c.name))...)
	}
	return errs
}

// Parts checks that none of the numbers is greater than the number of replicas.
func Parts(replicas int32, all ...Number) field.ErrorList {
	var errs field.ErrorList
	for _, c := range all {
		if c.value > int64(replicas) {
			errs = append(errs,
				field.Invalid(StatusPath.Child(c.name), c.value, "cannot be greater than status.replicas"))
		}
	}
	return errs
}

// AvailableAreReady checks that available replicas are ready; ready is the name of that number in
// the error.
func AvailableAreReady(available, readyReplicas int32, ready string) field.ErrorList {
	if available <= readyReplicas {
		return nil
	}
	return field.ErrorList{field.Invalid(StatusPath.Child("availableReplicas"), available,
		"cannot be greater than "+ready)}
}

// NotLess validates the collision count, which only grows.
func NotLess(is, was *int32) field.ErrorList {
	value := func(n *int32) int32 {
		if n == nil {
			return 0
		}
		return *n
	}
	if was == nil || is != nil && *is >= *was {
		return nil
	}
	return field.ErrorList{field.Invalid(StatusPath.Child("collisionCount"), value(is), "cannot be decremented")}
}
