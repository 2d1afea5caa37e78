package app

import (
	"maps"
	"strings"
	"sync"

	"carob/internal/base/addons"
	"carob/internal/core/gatewayplan/inferenceapi"
)

// addonSwitch reports to a part whether an add-on is on, according to the API server.
type addonSwitch struct {
	of addons.Addon
	// foreign includes definitions that carob did not install, unless their labels disable the add-on.
	foreign bool

	mu     sync.Mutex
	on     bool
	notify func(on bool) // nil until the part is there
}

// changed is called for each custom resource definition; labels is nil when it is gone.
func (s *addonSwitch) changed(definition string, labels map[string]string) {
	if definition != s.of.Switch {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	on := s.of.On(definition, labels) || s.foreign && labels != nil && labels[addons.State] != addons.Disabled
	if s.on == on {
		return
	}
	if s.on = on; s.notify != nil {
		s.notify(on)
	}
}

// follow calls a part with the state now and after each change.
func (s *addonSwitch) follow(notify func(on bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = notify
	if s.on {
		notify(true)
	}
}

// definitionChanged passes a changed custom resource definition to the add-ons.
func (c *carob) definitionChanged(definition string, labels map[string]string) {
	c.vpa.changed(definition, labels)
	c.gatewayAPI.changed(definition, labels)
	c.inference.changed(definition, labels)
}

// poolDefinitions reports which kinds of the inference extension the API server serves, including those whose
// definitions carob did not install.
type poolDefinitions struct {
	mu       sync.Mutex
	names    map[string]bool
	disabled bool // the add-on is disabled
	notify   func(map[string]bool)
}

// changed is called for each custom resource definition; labels is nil when it is gone.
func (d *poolDefinitions) changed(definition string, labels map[string]string) {
	_, group, _ := strings.Cut(definition, ".")
	if group != inferenceapi.Group && group != inferenceapi.OldGroup && group != inferenceapi.RouterGroup {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.served()
	if labels == nil {
		delete(d.names, definition)
	} else if d.names == nil {
		d.names = map[string]bool{definition: true}
	} else {
		d.names[definition] = true
	}
	if a, _ := addons.Find(addons.Inference); definition == a.Switch {
		d.disabled = labels[addons.State] == addons.Disabled
	}
	if now := d.served(); d.notify != nil && !maps.Equal(before, now) {
		d.notify(now)
	}
}

func (d *poolDefinitions) served() map[string]bool {
	if d.disabled {
		return nil
	}
	return maps.Clone(d.names)
}

// follow calls a part with the definitions now and after each change.
func (d *poolDefinitions) follow(notify func(map[string]bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = notify
	notify(d.served())
}
