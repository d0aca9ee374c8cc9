package servicetest

// PageEdges are the numbers of things at which a walk over pages of this size may end too early, or not at all.
func PageEdges(page int) []int {
	return []int{0, 1, page - 1, page, page + 1, 2 * page, 2*page + 1}
}
