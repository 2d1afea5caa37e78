package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"

	carobadmission "carob/internal/apiserver/admission"
	"carob/internal/apiserver/endpoints"
	"carob/internal/apiserver/webhooks"
)

// chainAdmission puts the users' admission after the built-in plugins, and runs all mutating ones a second time if
// a webhook requires it.
func (s *Server) chainAdmission(c *genericapiserver.Config, reader carobadmission.Reader) error {
	config, err := carobadmission.LoadConfiguration(s.cfg.AdmissionConfig)
	if err != nil {
		return err
	}
	if err := webhooks.CheckConfiguration(config.For); err != nil {
		return err
	}
	builtin, err := carobadmission.New(carobadmission.Config{Reader: reader, Authorizer: s.authorizer,
		Configuration: config, PodAutoscaler: &s.autoscaler})
	if err != nil {
		return err
	}
	quota, err := carobadmission.NewQuota(reader, s.storageOf, config.For("ResourceQuota"), s.stopped)
	if err != nil {
		return err
	}
	s.ext.resolver = &endpoints.Resolver{Reader: reader}
	s.ext.plugins = webhooks.NewPlugins(webhooks.Config{Client: s.serverClient, Authorizer: s.authorizer,
		Resolver: s.ext.resolver, Wrapper: s.credentials, Version: c.EffectiveVersion,
		Configuration: config.For, Loaded: s.ready,
		KindsChanged: func(f func()) { s.generic.AggregatedDiscoveryGroupManager.AddInvalidationCallback(f) }})
	c.AdmissionControl = carobadmission.MeasuredStep(reinvoking{admission.NewChainHandler(
		carobadmission.Size{Most: c.MaxRequestBodyBytes}, builtin, s.ext.plugins,
		carobadmission.Measured("ResourceQuota", quota))})
	return nil
}

// reinvoking runs the mutating plugins again if one that changed the object requires it.
type reinvoking struct{ admission.Interface }

// Admit implements admission.MutationInterface.
func (r reinvoking) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	m, ok := r.Interface.(admission.MutationInterface)
	if !ok {
		return nil
	}
	if err := m.Admit(ctx, a, o); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return m.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (r reinvoking) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := r.Interface.(admission.ValidationInterface); ok {
		return v.Validate(ctx, a, o)
	}
	return nil
}
