package instance

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// GatewayPorts are where the gateway listens.
type GatewayPorts struct {
	HTTP, HTTPS netip.AddrPort // not valid: nowhere
	Addresses   []netip.Addr   // one for each Gateway
	AccessLog   string         // path, or "-" for standard output; empty: none
	Proxies     []netip.Prefix // load balancers that send a PROXY header
	Picker      netip.AddrPort // where other gateways call the endpoint picker; not valid: nowhere
	PickerPlain bool           // without TLS
}

// On reports whether the gateway is configured.
func (p GatewayPorts) On() bool { return p.Serves() || p.Picker.IsValid() }

// Serves reports whether Ingresses or Gateways are served.
func (p GatewayPorts) Serves() bool {
	return p.HTTP.IsValid() || p.HTTPS.IsValid() || len(p.Addresses) > 0
}

// mostGateways bounds a range of addresses.
const mostGateways = 1 << 12

func gatewayPorts(f Flags) (out GatewayPorts, err error) {
	if out.HTTP, err = gatewayPort("--gateway-http", f.GatewayHTTP); err != nil {
		return out, err
	}
	if out.HTTPS, err = gatewayPort("--gateway-https", f.GatewayHTTPS); err != nil {
		return out, err
	}
	if out.HTTP.IsValid() && out.HTTP.Port() == out.HTTPS.Port() && (out.HTTP.Addr() == out.HTTPS.Addr() ||
		out.HTTP.Addr().IsUnspecified() || out.HTTPS.Addr().IsUnspecified()) {
		return out, fmt.Errorf("%w --gateway-https: %s is the port of --gateway-http", ErrFlag, f.GatewayHTTPS)
	}
	for text := range strings.SplitSeq(f.GatewayAddresses, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if ip, err := netip.ParseAddr(text); err == nil {
			out.Addresses = append(out.Addresses, ip)
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().BitLen()-p.Bits() > 12 {
			return out, fmt.Errorf("%w --gateway-addresses: %q is neither an IP address nor a range of at most %d",
				ErrFlag, text, mostGateways)
		}
		for ip := p.Masked().Addr(); p.Contains(ip); ip = ip.Next() {
			out.Addresses = append(out.Addresses, ip)
		}
	}
	if slices.ContainsFunc(out.Addresses, netip.Addr.IsUnspecified) {
		return out, fmt.Errorf("%w --gateway-addresses: each must be one address", ErrFlag)
	}
	if out.AccessLog = f.GatewayAccessLog; out.AccessLog != "" && out.AccessLog != "-" &&
		!filepath.IsAbs(out.AccessLog) {
		return out, fmt.Errorf("%w --gateway-access-log: %q is neither an absolute path nor -", ErrFlag, out.AccessLog)
	}
	for text := range strings.SplitSeq(f.GatewayProxies, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if ip, bad := netip.ParseAddr(text); bad == nil {
			p, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			return out, fmt.Errorf("%w --gateway-proxy-protocol: %q is neither an IP address nor a range", ErrFlag, text)
		}
		out.Proxies = append(out.Proxies, p.Masked())
	}
	if out.Picker, err = gatewayPort("--endpoint-picker-listen", f.EndpointPicker); err != nil {
		return out, err
	}
	if out.PickerPlain = f.EndpointPickerPlain; out.PickerPlain && !out.Picker.IsValid() {
		return out, fmt.Errorf("%w --endpoint-picker-plaintext: it needs --endpoint-picker-listen", ErrFlag)
	}
	return out, nil
}

func gatewayPort(flag, text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	if strings.HasPrefix(text, ":") {
		text = "0.0.0.0" + text
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 {
		return at, fmt.Errorf("%w %s: %q is neither IP:PORT nor :PORT", ErrFlag, flag, text)
	}
	return at, nil
}
