package auth

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// A rule grants each combination of a group, a resource, a name, and a verb: a role of a megabyte has as many as 10^13.
// The library makes a list of them before it compares them, and its process ends for lack of memory.
const (
	// mostNotHeld is how many combinations that are not held an error names.
	mostNotHeld = 1000
	// mostCompared is how many texts of rules are compared. It takes about a second.
	mostCompared = 200_000_000
)

// What follows the rules of an error that does not name all.
const (
	moreNotHeld = "and more, which are not shown"
	notCompared = "the rules combine to too many permissions to compare them with those that are held; split the role"
)

// uncovered returns what the rules grant that none of the held ones does, a single combination each, in the order of
// the rules. It answers as the library's Covers. rest is not empty if there may be more.
func uncovered(held, rules []rbacv1.PolicyRule) (missing []rbacv1.PolicyRule, rest string) {
	c := comparison{held: held, left: mostCompared}
	for i := range rules {
		if r := distinct(&rules[i]); !c.whole(&r) && !c.resources(&r) || !c.urls(&r) {
			return c.missing, c.rest
		}
	}
	return c.missing, c.rest
}

// comparison is the state of a call to uncovered.
type comparison struct {
	held    []rbacv1.PolicyRule
	left    int // comparisons that are allowed
	missing []rbacv1.PolicyRule
	rest    string
}

// distinct returns a rule without what it names twice.
func distinct(r *rbacv1.PolicyRule) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: once(r.Verbs), APIGroups: once(r.APIGroups), Resources: once(r.Resources),
		ResourceNames: once(r.ResourceNames), NonResourceURLs: once(r.NonResourceURLs)}
}

// once returns each of the texts once, in their order.
func once(texts []string) []string {
	if len(texts) < 2 {
		return texts
	}
	seen := make(map[string]bool, len(texts))
	var out []string
	for _, t := range texts {
		if !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	return out
}

// whole reports whether one held rule covers all that a rule grants on resources: then its combinations need not be
// looked at.
func (c *comparison) whole(r *rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(c.held, func(h rbacv1.PolicyRule) bool {
		return c.every(r.Verbs, h.Verbs, has) && c.every(r.APIGroups, h.APIGroups, has) &&
			c.every(r.Resources, h.Resources, grantsResource) &&
			(len(h.ResourceNames) == 0 ||
				len(r.ResourceNames) > 0 && c.every(r.ResourceNames, h.ResourceNames, slices.Contains))
	})
}

// every reports whether held includes all of the texts; false if there were too many comparisons.
func (c *comparison) every(texts, held []string, includes func(held []string, text string) bool) bool {
	return !slices.ContainsFunc(texts, func(t string) bool { return !c.spend(1+len(held)) || !includes(held, t) })
}

// grantsResource reports whether resources of a held rule include one of another rule, which may be "pods/log" or "*".
func grantsResource(held []string, resource string) bool {
	if has(held, resource) {
		return true
	}
	_, sub, ok := strings.Cut(resource, "/")
	return ok && slices.Contains(held, "*/"+sub)
}

// resources compares what a rule grants on resources; false if it must end.
func (c *comparison) resources(r *rbacv1.PolicyRule) bool {
	names, named := r.ResourceNames, len(r.ResourceNames) > 0
	if !named {
		names = []string{""} // all of them
	}
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			var able []*rbacv1.PolicyRule
			for i := range c.held {
				h := &c.held[i]
				if !c.spend(1 + len(h.APIGroups) + len(h.Resources)) {
					return false
				}
				if has(h.APIGroups, group) && grantsResource(h.Resources, resource) {
					able = append(able, h)
				}
			}
			for _, verb := range r.Verbs {
				for _, name := range names {
					if c.allow(able, verb, name, named) {
						continue
					}
					if c.left < 0 {
						return false
					}
					found := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource},
						Verbs: []string{verb}}
					if named {
						found.ResourceNames = []string{name}
					}
					if !c.lacks(found) {
						return false
					}
				}
			}
		}
	}
	return true
}

// allow reports whether one of the rules has a verb for a name, or unless named, for all names.
func (c *comparison) allow(rules []*rbacv1.PolicyRule, verb, name string, named bool) bool {
	for _, h := range rules {
		if !c.spend(1 + len(h.Verbs) + len(h.ResourceNames)) {
			return false
		}
		if has(h.Verbs, verb) && (len(h.ResourceNames) == 0 || named && slices.Contains(h.ResourceNames, name)) {
			return true
		}
	}
	return false
}

// urls compares what a rule grants on paths that are no resources; false if it must end.
func (c *comparison) urls(r *rbacv1.PolicyRule) bool {
	for _, url := range r.NonResourceURLs {
		for _, verb := range r.Verbs {
			held := slices.ContainsFunc(c.held, func(h rbacv1.PolicyRule) bool {
				return c.spend(1+len(h.Verbs)+len(h.NonResourceURLs)) && len(h.ResourceNames) == 0 &&
					has(h.Verbs, verb) &&
					slices.ContainsFunc(h.NonResourceURLs, func(held string) bool { return coversPath(held, url) })
			})
			if c.left < 0 || !held &&
				!c.lacks(rbacv1.PolicyRule{NonResourceURLs: []string{url}, Verbs: []string{verb}}) {
				return false
			}
		}
	}
	return true
}

// spend counts comparisons; false if there were too many.
func (c *comparison) spend(n int) bool {
	if c.left -= n; c.left < 0 {
		c.rest = notCompared
	}
	return c.left >= 0
}

// lacks records a combination that is not held; false if there are enough of them.
func (c *comparison) lacks(p rbacv1.PolicyRule) bool {
	if len(c.missing) == mostNotHeld {
		c.rest = moreNotHeld
		return false
	}
	c.missing = append(c.missing, p)
	return true
}
