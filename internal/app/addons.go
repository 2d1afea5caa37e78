package app

import (
	"sync"

	"carob/internal/base/addons"
)

// addonSwitch reports to a part whether an add-on is on, according to the API server.
type addonSwitch struct {
	of addons.Addon
	// anybody has definitions count that somebody else has installed, unless they say that it is disabled.
	anybody bool

	mu   sync.Mutex
	on   bool
	tell func(on bool) // nil until the part is there
}

// changed is called for each custom resource definition; labels is nil when it is gone.
func (s *addonSwitch) changed(definition string, labels map[string]string) {
	if definition != s.of.Switch {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	on := s.of.On(definition, labels) || s.anybody && labels != nil && labels[addons.State] != addons.Disabled
	if s.on == on {
		return
	}
	if s.on = on; s.tell != nil {
		s.tell(on)
	}
}

// follow calls a part with the state now and after each change.
func (s *addonSwitch) follow(tell func(on bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = tell
	if s.on {
		tell(true)
	}
}

// definitionChanged tells the add-ons of a custom resource definition.
func (c *carob) definitionChanged(definition string, labels map[string]string) {
	c.vpa.changed(definition, labels)
	c.gatewayAPI.changed(definition, labels)
}
