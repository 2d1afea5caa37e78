package explain

import "strings"

// Place is an address at which a gateway serves a part of a route.
type Place struct {
	Where    string // such as http://10.0.0.1:80/path
	Answer   string // the response to requests that reach no backend
	Backends []PlaceBackend
}

// PlaceBackend is one of the backends of a place.
type PlaceBackend struct {
	Name    string
	Ready   int // endpoints
	Weight  int32
	Problem string
}

// Served holds how an Ingress, a Gateway, or a route is served.
type Served struct {
	Parents  []Parent // of its status; a Gateway has one without a name
	Places   []Place
	Problems []string // reported by the gateway
	Unknown  string   // why the gateway's state could not be read; empty: it was
	Class    *string  // the IngressClass that an Ingress names, or an empty string; nil: of another kind
	// Named are the Gateways that a route names, if none has reported a state; nil: one has, or of another kind.
	Named []NamedGateway
}

// NoGateway is why the state of a gateway cannot be read if there is none.
const NoGateway = "it was started without --gateway-http, --gateway-https, and --gateway-addresses"

// NothingServed is the line for an object for which a gateway serves nothing.
const NothingServed = "nothing is served for it"

// Route explains an Ingress, a Gateway, or a route of the Gateway API.
func Route(s *Served) (out Lines) {
	switch s.Unknown {
	case "":
	case NoGateway:
		out.warn("carob does not serve it: %s", s.Unknown)
	default:
		out.warn("cannot read what the gateway serves: %s", s.Unknown)
	}
	for _, p := range s.Parents {
		of := "its status"
		if p.Name != "" {
			of = "Gateway " + p.Name
		}
		out.conditions(of, p.Conditions)
	}
	for _, p := range s.Problems {
		out.warn("%s", p)
	}
	if s.Unknown == "" && len(s.Places) == 0 {
		switch {
		case s.Named != nil:
			out.gateways(s.Named)
		case s.Class == nil || len(s.Problems) > 0:
			out.warn("%s", NothingServed)
		case *s.Class == "":
			out.warn("%s: it names no IngressClass; set spec.ingressClassName, to carob for the built-in gateway",
				NothingServed)
		default:
			out.warn("%s: check that carob serves its IngressClass %q", NothingServed, *s.Class)
		}
	}
	for _, p := range s.Places {
		out.place(&p)
	}
	return out
}

func (l *Lines) place(p *Place) {
	if p.Answer != "" {
		l.info("%s answers %s", p.Where, p.Answer)
		return
	}
	if len(p.Backends) == 0 {
		l.warn("%s has no backend: requests get 500", p.Where)
		return
	}
	var works []string
	for _, b := range p.Backends {
		name := b.Name
		if name == "" {
			name = "a backend"
		}
		switch {
		case b.Weight == 0 && len(p.Backends) > 1:
			works = append(works, name+" (weight 0: nothing)")
		case b.Problem != "":
			l.warn("%s → %s: %s", p.Where, name, b.Problem)
		case b.Ready == 0:
			l.warn("%s → %s: no endpoint is ready, requests get 503", p.Where, name)
		default:
			works = append(works, name+" ("+counted(b.Ready, "endpoint")+")")
		}
	}
	if len(works) > 0 {
		l.info("%s → %s", p.Where, strings.Join(works, ", "))
	}
}
