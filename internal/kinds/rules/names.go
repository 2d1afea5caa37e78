package rules

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SignerName validates "example.com/signer".
func SignerName(name string, at *field.Path) field.ErrorList {
	const longestDomain = validation.DNS1123SubdomainMaxLength
	const longest = longestDomain + 1 + validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 1
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return field.ErrorList{field.Invalid(at, name,
			"must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	if len(domain) > longestDomain {
		errs = append(errs, field.TooLong(at, "", longestDomain))
	}
	labels := func(part string, check func(string) []string) {
		for label := range strings.SplitSeq(part, ".") {
			if msgs := check(label); len(msgs) > 0 {
				for _, m := range msgs {
					errs = append(errs, field.Invalid(at, part, fmt.Sprintf("validating label %q: %s", label, m)))
				}
				return
			}
		}
	}
	labels(domain, validation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		errs = append(errs,
			field.Invalid(at, domain, "should be a domain with at least two segments separated by dots"))
	}
	labels(path, validation.IsDNS1123Subdomain)
	if len(name) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	return errs
}

// NoName accepts every name that is a valid path segment.
func NoName(string, bool) []string { return nil }

// DriverName validates the name of a CSI or device driver: a DNS subdomain of at most 63
// characters.
func DriverName(name string, at *field.Path) field.ErrorList {
	const longest = 63
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	if len(name) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	return append(errs, Messages(at, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}
