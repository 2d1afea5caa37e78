package sim
import ("testing";"os";"strings";"strconv")
func TestZZ(t *testing.T) {
	if os.Getenv("ZZ") == "" { t.Skip() }
	o := Options{Seed: number(t, "ZZ", 0, toUint), Hours: number(t, "SIM_HOURS", 1, toFloat), Log: os.Stdout}
	for _, x := range strings.Split(os.Getenv("WITHOUT"), ",") { n, err := strconv.Atoi(x); if err == nil { o.Without = append(o.Without, n) } }
	_, err := Run(o)
	t.Log(err)
}
